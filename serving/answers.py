"""Results as JSON data, and waiting for them as long as the client does."""

import asyncio
import base64
import contextlib
import time
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from zeus_trt.serving.generation_request import GenerationRequest
from zeus_trt.serving.image_model import Made, encode_png

if TYPE_CHECKING:
    from PIL import Image

_REPORTED = (
    "plan", "nfe", "mode", "backend", "predictor", "total_seconds", "engine_seconds", "queue_seconds", "wait_seconds",
    "shared_calls", "mean_rows", "speedup_bound",
)  # fmt: skip


def describe_result(asked: GenerationRequest, made: Made) -> dict[str, Any]:
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
    return base64.b64encode(encode_png(image)).decode("ascii")


async def wait_for(future: "Future[Made]", request: Request) -> Made | None:
    """The result; None if the client closes the connection before, which cancels the request.

    Raises:
        Exception: That of the future.
    """
    wrapped = asyncio.wrap_future(future)
    watch = asyncio.ensure_future(wait_until_gone(request))
    try:
        await asyncio.wait({wrapped, watch}, return_when=asyncio.FIRST_COMPLETED)
        return await wrapped if wrapped.done() else None
    finally:
        watch.cancel()
        wrapped.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


async def wait_until_gone(request: Request) -> None:
    """Returns when the client closes the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
