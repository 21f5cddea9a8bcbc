"""Results as JSON data, and waiting for them as long as the client does."""

import asyncio
import base64
import contextlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from zeus_trt.pictures import encode_image
from zeus_trt.serving.image_model import Made
from zeus_trt.serving.image_request import ImageRequest

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
_REPORTED = (
    "plan", "reason", "nfe", "mode", "backend", "predictor", "total_seconds", "engine_seconds", "queue_seconds",
    "wait_seconds", "shared_calls", "mean_rows", "speedup_bound",
)  # fmt: skip


def describe_result(asked: ImageRequest, made: Made) -> dict[str, Any]:
    """The body of an answer: OpenAI's fields, the seed that was used, and the report of the run."""
    report = asdict(made.report)
    return {
        "created": int(time.time()),
        "data": [{"b64_json": encode_base64(image)} for image in made.images],
        "output_format": "png",
        "size": "x".join(map(str, made.images[0].size)),
        "seed": asked.seed,
        "report": {name: report[name] for name in _REPORTED if name in report} | {"steps": asked.steps},
    }


def encode_base64(image: "Image.Image") -> str:
    """The picture as a PNG file in base64."""
    return base64.b64encode(encode_image(image)).decode("ascii")


async def wait_for(waiting: "asyncio.Future[T]", request: Request) -> T:
    """The result of ``waiting``, which is cancelled if the client closes the connection before it is there.

    Raises:
        ClientDisconnect: The client is gone.
        Exception: That of the future.
    """
    watch = asyncio.ensure_future(_wait_until_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {waiting, watch}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return await waiting
    finally:
        waiting.cancel()
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


async def _wait_until_gone(request: Request) -> None:
    """Returns when the client closes the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
