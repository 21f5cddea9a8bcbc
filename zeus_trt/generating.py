"""What `zeus-trt generate-batch` does."""

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, escape, say_cause
from zeus_trt.files import check_place, digest_file, write_atomically
from zeus_trt.pictures import encode_image, find_format
from zeus_trt.request_file import NamedRequest, read_requests
from zeus_trt.runtime import Report
from zeus_trt.runtime.bundle.manifest import FILE_NAME
from zeus_trt.serving.image_model import ImageModel
from zeus_trt.serving_model import ServedModel

_TOLD = ("plan", "reason", "predictor", "nfe", "backend", "mode", "engine_seconds", "total_seconds")


@dataclass(frozen=True)
class Outcome:
    """What became of a request: the bytes of a picture and what the run did, or the sentence of its error."""

    id: str
    picture: bytes = b""
    report: str = "{}"
    error: str = ""


Outcomes = Generator[Outcome, None, None]
Runner = Callable[[ServedModel, Sequence[NamedRequest], str], Outcomes]
"""Makes the pictures of requests for a model, in files of an ending; in any order."""


@dataclass(frozen=True)
class Record:
    """The file beside a picture, by which a restart knows that it is done.

    Args:
        digest: Of the request, the model and the format.
        sha256: Of the picture's file.
        report: What the run did.
    """

    digest: str
    sha256: str
    report: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """What a batch came to.

    Args:
        made: Ids of pictures that were made.
        kept: How many were there already.
        failed: The error of each other request, by id.
    """

    made: tuple[str, ...]
    kept: int
    failed: dict[str, str]

    def describe(self) -> str:
        """A line per failed request, and one of numbers."""
        lines = [escape(f"{name}: {error}") for name, error in self.failed.items()]
        return "\n".join([*lines, f"{len(self.made)} made, {self.kept} kept, {len(self.failed)} failed"])

    def check(self) -> "Summary":
        """Itself; raises ZeusError if a request failed."""
        if self.failed:
            raise ZeusError(
                f"requests: got {len(self.failed)} that failed, {', '.join(islice(self.failed, 3))} first; expected "
                "all pictures. Look at their errors, and run the command again: it makes what is missing."
            )
        return self


def run_here(options: ServedModel, requests: Sequence[NamedRequest], ending: str) -> Outcomes:
    """A ``Runner`` in this process."""
    model = options.open()
    try:
        yield from make_all(model, requests, ending)
    finally:
        model.close(cancel=True)


def make_all(model: ImageModel, requests: Iterable[NamedRequest], ending: str) -> Outcomes:
    """Makes the pictures of requests, twice as many at a time as a call has rows; yields each as it is done."""
    left, make, num_threads = iter(requests), partial(_make_one, model, ending), 2 * model.max_rows
    pool = ThreadPoolExecutor(num_threads, "zeus-trt-picture")
    try:
        running = {pool.submit(make, one) for one in islice(left, num_threads)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(make, one) for one in islice(left, len(done))}
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # closing the model ends what runs


def generate_batch(
    model: ServedModel,
    requests: Path,
    output: Path,
    *,
    ending: str = ".png",
    run: Runner = run_here,
    on_picture: Callable[[], Any] = lambda: None,
) -> Summary:
    """Makes the picture of every request of a file that ``output`` does not have yet.

    Args:
        model: The model.
        requests: As in ``read_requests``.
        output: The folder to fill: ``<id>.png``, and ``<id>.json`` beside it. A picture is kept if it is the one of
            an equal request of the same model.
        ending: Of the pictures.
        run: Where they are made.
        on_picture: Called after every request.

    Raises:
        ZeusError: Requests that do not read, a model that does not open, or a place that cannot be written. What was
            made is there.
    """
    find_format(Path(f"picture{ending}"))
    bundle = model.open_bundle()
    asked = read_requests(requests, bundle.manifest, model.is_pipeline)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.mkdir(exist_ok=True)
    check_place(output / "picture")
    same = [
        digest_file(bundle.path / FILE_NAME),
        str(model.model) if model.is_pipeline else "",
        str(model.dtype),
        ending,
    ]
    digests = {one.id: _digest(one, same) for one in asked}
    missing = [one for one in asked if not _is_done(output / f"{one.id}{ending}", digests[one.id])]
    made: list[str] = []
    failed: dict[str, str] = {}
    if missing:
        with closing(run(model, missing, ending)) as outcomes:
            for outcome in outcomes:
                if outcome.error:
                    failed[outcome.id] = outcome.error
                else:
                    _write(output / f"{outcome.id}{ending}", outcome, digests[outcome.id])
                    made.append(outcome.id)
                on_picture()
    return Summary(tuple(made), len(asked) - len(missing), failed)


def _make_one(model: ImageModel, ending: str, one: NamedRequest) -> Outcome:
    try:
        made = model.submit(one.request).result()
        return Outcome(one.id, encode_image(made.images[0], ending), _tell(made.report))
    except ZeusError as error:
        return Outcome(one.id, error=str(error))
    except Exception as error:  # of diffusers or an engine: one request fails, the others go on
        return Outcome(one.id, error=f"run: got an error ({say_cause(error)}); expected none. Change the request.")


def _tell(report: Report) -> str:
    return json.dumps({name: getattr(report, name) for name in _TOLD})


def _digest(one: NamedRequest, same: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([one.request.digest(), *same]).encode()).hexdigest()


def _is_done(picture: Path, digest: str) -> bool:
    try:
        record = strict_json.read(picture.with_name(f"{picture.stem}.json"), Record, "record")
        return record.digest == digest and digest_file(picture) == record.sha256
    except (ZeusError, OSError):  # not there, or not whole: it is made again
        return False


def _write(picture: Path, outcome: Outcome, digest: str) -> None:
    """Writes the picture, then its record: one without the other is not done."""
    with write_atomically(picture) as temporary:
        temporary.write_bytes(outcome.picture)
    record = Record(digest, hashlib.sha256(outcome.picture).hexdigest(), json.loads(outcome.report))
    with write_atomically(picture.with_name(f"{picture.stem}.json")) as temporary:
        temporary.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
