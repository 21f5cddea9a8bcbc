"""Files of requests for pictures: JSON lines, or Parquet."""

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.serving.image_request import ADVICE, ImageRequest, read_request
from zeus_trt.serving.limits import Limits
from zeus_trt.zeus_graph.counts import MAX_STEPS, show

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LIMITS = Limits(images=1, steps=MAX_STEPS, pixels=1 << 26, prompt=10_000)
_OF_HTTP = ("stream", "partial_images", "response_format", "model", "user")


@dataclass(frozen=True)
class NamedRequest:
    """A request, and the name of its files."""

    id: str
    request: ImageRequest


def read_requests(file: Path, manifest: Manifest, is_pipeline: bool = False) -> list[NamedRequest]:
    """Reads every request of a file before the first of them runs.

    Args:
        file: ``.jsonl``, an object per line, or ``.parquet``, one per row: an ``id`` and the fields of
            ``ImageRequest``, but for those of HTTP; null is as good as no field. The seed is 0 by default, and ``n`` is
            1. Blank lines are skipped.
        manifest, is_pipeline: As in ``ImageRequest.check_for``.

    Raises:
        ZeusError: The file does not read, or a line is no request for this model: the message has its number.
    """
    if file.suffix not in (".jsonl", ".parquet"):
        raise ZeusError(f"requests: got {file}; expected a file .jsonl or .parquet. Change it.")
    unit, rows = ("line", _read_lines(file)) if file.suffix == ".jsonl" else ("row", _read_parquet(file))
    found: dict[str, NamedRequest] = {}
    for number, data in rows:
        try:
            one = _read_one(data)
            one.request.check_for(manifest, is_pipeline)
            if (key := one.id.casefold()) in found:  # some disks do not tell a from A
                raise ZeusError(f"id: got {one.id} again; expected another one in each {unit}. Change it.")
        except ZeusError as error:
            raise ZeusError(f"{unit} {number} of {file.name}: {error}") from error
        found[key] = one
    if not found:
        raise ZeusError(f"requests: got {file}, which has none; expected one per {unit}. Add some.")
    return list(found.values())


def _read_one(data: Any) -> NamedRequest:
    if isinstance(data, bytes):
        data = strict_json.decode(data, "request", advice=ADVICE)
    if not isinstance(data, dict):
        raise ZeusError(f"request: got {show(data)}; expected a JSON object. {ADVICE}")
    fields = {"seed": 0} | {name: value for name, value in data.items() if value is not None}
    name = fields.pop("id", None)
    name = str(name) if type(name) is int else name
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ZeusError(
            f"id: got {show(name)}; expected the name of a file: at most 128 letters, digits, dots, hyphens and "
            "underscores, no dot or hyphen first. Change it."
        )
    if other := next((field for field in _OF_HTTP if field in fields), None):
        raise ZeusError(f"{other}: got it in a file; expected it over HTTP alone. Leave it out.")
    return NamedRequest(name, read_request(fields, _LIMITS))


def _read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(strict_json.LIMIT + 1), b""), 1):
                if len(line) > strict_json.LIMIT:
                    where = f"line {number} of {file.name}"
                    raise ZeusError(f"{where}: got more than {strict_json.LIMIT} bytes; expected fewer. Split it.")
                if line.strip():
                    yield number, line
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ZeusError(f"requests: got {file}, which does not read ({reason}); expected a file. Check it.") from error


def _read_parquet(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ZeusError(
            "requests: got Parquet without a library that reads it; expected pyarrow. Install it, or give .jsonl: "
            "pip install pyarrow."
        )
    import pyarrow
    from pyarrow import parquet

    known = {"id", *(field.name for field in dataclasses.fields(ImageRequest))} - {*_OF_HTTP}
    try:
        with parquet.ParquetFile(file) as table:
            if unknown := sorted(set(table.schema_arrow.names) - known):
                raise ZeusError(f"requests: got the column {unknown[0]!r}; expected some of {sorted(known)}. Drop it.")
            number = 0
            for batch in table.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pyarrow.ArrowException) as error:
        raise ZeusError(f"requests: got {file}, which does not read ({error}); expected Parquet. Check it.") from error
