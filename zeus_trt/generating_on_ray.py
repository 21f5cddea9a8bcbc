"""A batch as a job of Ray Data."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.generating import Outcome, Outcomes, Runner, make_all
from zeus_trt.ray_cluster import RayOptions, connect, find_on_every_node
from zeus_trt.request_file import NamedRequest
from zeus_trt.serving.image_model import ImageModel
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving_model import ServedModel

if TYPE_CHECKING:
    import pyarrow

_TRIES = 4  # two blocks, each repeated once
_ADVICE = "Take the request out, or look at Ray's logs for what ends a worker."
_COLUMNS = ("id", "picture", "report", "error")


class Worker:
    """Makes pictures in a process of Ray, which opens the model once.

    Args:
        options: The fields of ``ServedModel``.
        ending: Of the pictures.
    """

    def __init__(self, options: dict[str, Any], ending: str):
        self._ending, self._fault = ending, ""
        self._model: ImageModel | None = None
        try:
            self._model = ServedModel(**options).open()
        except ZeusError as error:  # Ray would start it again and again
            self._fault = str(error)

    def __call__(self, rows: "pyarrow.Table") -> "pyarrow.Table":
        """Rows with ``id`` and ``request`` (JSON) become rows of the fields of ``Outcome``; no id says why none can."""
        import pyarrow

        if self._model is None:
            outcomes = [Outcome("", error=self._fault)]
        else:
            asked = [NamedRequest(row["id"], ImageRequest(**json.loads(row["request"]))) for row in rows.to_pylist()]
            outcomes = list(make_all(self._model, asked, self._ending))
        kinds = {name: pyarrow.binary() if name == "picture" else pyarrow.string() for name in _COLUMNS}
        return pyarrow.Table.from_pylist([asdict(outcome) for outcome in outcomes], pyarrow.schema(kinds))


def run_on_ray(cluster: RayOptions) -> Runner:
    """A ``Runner`` on a cluster; pictures come back to this process, which alone writes them."""
    return partial(_run, cluster)


def _run(cluster: RayOptions, options: ServedModel, requests: Sequence[NamedRequest], ending: str) -> Outcomes:
    """Requests whose block ended its worker, or failed, are given to workers once more, each alone; then they fail."""
    rows = [{"id": one.id, "request": json.dumps(asdict(one.request))} for one in requests]
    size = min(4 * options.max_rows, -(-len(rows) // cluster.replicas[1]))  # work for every worker, little to repeat
    with connect(cluster) as ray:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False  # the caller has one
        context.max_errored_blocks = -1
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        make = partial(_make_blocks, ray, cluster, (find_on_every_node(options), ending))
        left = {row["id"]: row for row in rows}
        for rows_of_block in (size, 1):
            for outcome in make([*left.values()], rows_of_block) if left else ():
                del left[outcome.id]
                yield outcome
    for name in left:
        yield Outcome(name, error=f"ray: got no answer of {_TRIES} workers; expected a picture. {_ADVICE}")


def _make_blocks(
    ray: Any, cluster: RayOptions, made_of: tuple[Any, ...], rows: Sequence[dict[str, str]], size: int
) -> Outcomes:
    """What becomes of blocks of ``size`` requests; those of a block that fails twice are missing."""
    least, most = cluster.replicas
    pictures = ray.data.from_items(list(rows), override_num_blocks=-(-len(rows) // size)).map_batches(
        Worker,
        fn_constructor_args=made_of,
        batch_size=size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most, max_tasks_in_flight_per_actor=1),
        max_task_retries=1,
        **cluster.list_resources(),
    )
    try:
        for row in pictures.iter_rows():
            if not row["id"]:
                raise ZeusError(row["error"])
            yield Outcome(**row)
    except ray.exceptions.RayError as error:
        raise ZeusError(
            f"ray: got a job that ended early ({say_cause(error)}); expected workers that live. Look at Ray's logs, "
            "and run the command again: it makes what is missing."
        ) from error
