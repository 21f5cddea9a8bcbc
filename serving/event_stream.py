"""Progress of a request as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from zeus_trt.runtime.steppers import Step
from zeus_trt.serving.answers import encode_base64, wait_for
from zeus_trt.serving.http_errors import describe_error
from zeus_trt.serving.image_model import Draw, Made
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.service import Service

_MOST_WAITING = 8  # events that a slow client has not read; further previews are left out
_PARTIAL, _COMPLETED = "image_generation.partial_image", "image_generation.completed"


class EventStream:
    """The events of one request: one per step and picture of it, one per picture at the end, or an error.

    Args:
        describe: Makes the data of the end.
        seconds: How long a client may take to read it all.
        on_close: Called once when the stream is over.
    """

    def __init__(
        self, describe: Callable[[Made], dict[str, Any]], seconds: float, on_close: Callable[["EventStream"], Any]
    ):
        self._describe, self._seconds, self._on_close = describe, seconds, on_close
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._future: Future[Made] | None = None
        self._first: dict[str, Any] | None = None
        self._asked = ImageRequest()

    async def start(self, service: Service, asked: ImageRequest, request: Request) -> None:
        """Submits the request, and waits for its first step.

        Raises:
            ClientDisconnect: The client is gone.
            Exception: That of the request, if it fails before that.
        """
        self._asked = asked
        self._future = service.submit(asked, self._seconds, self._note)
        self._future.add_done_callback(lambda done: self._put(None))
        self._first = await wait_for(asyncio.ensure_future(self._events.get()), request)
        if self._first is None:
            await asyncio.wrap_future(self._future)

    def respond(self) -> StreamingResponse:
        """The answer."""
        return _TimedResponse(self._write(), self._seconds, media_type="text/event-stream")

    def close(self) -> None:
        """Cancels the request, unless it is done."""
        if self._future is not None:
            self._future.cancel()
        self._on_close(self)

    async def _write(self) -> AsyncIterator[bytes]:
        try:
            event = self._first
            while event is not None:
                yield _format(event)
                event = await self._events.get()
            async for last in self._end():
                yield last
        finally:
            self.close()

    async def _end(self) -> AsyncIterator[bytes]:
        assert self._future is not None
        try:
            made = await asyncio.wrap_future(self._future)
            answer = await anyio.to_thread.run_sync(self._describe, made)
        except Exception as error:
            yield _format({"type": "error", **describe_error(error)[1]})
            return
        for index, picture in enumerate(answer.pop("data")):
            yield _format({"type": _COMPLETED, "index": index, **picture, **answer})

    def _note(self, step: Step, draw: Draw | None) -> None:
        """Called in the thread of the request."""
        if self._events.qsize() >= _MOST_WAITING:
            return
        images = draw() if draw and _is_due(step.index, self._asked) else [None]
        for index, image in enumerate(images):
            event = {"type": _PARTIAL, "partial_image_index": step.index, "index": index, "kind": step.kind}
            self._put(event | ({"b64_json": encode_base64(image)} if image else {}))

    def _put(self, event: dict[str, Any] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def _is_due(index: int, asked: ImageRequest) -> bool:
    """Whether a step is one of those with pictures, which are evenly spaced before the last one."""
    if (count := asked.partial_images) is None:
        return True
    steps = asked.steps or 1
    return index + 1 < steps and (index + 1) * (count + 1) // steps > index * (count + 1) // steps


class _TimedResponse(StreamingResponse):
    """A stream that ends when a client reads too slowly."""

    def __init__(self, content: AsyncIterator[bytes], seconds: float, **settings: Any):
        super().__init__(content, **settings)
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(self._seconds):
            await super().__call__(scope, receive, send)


def _format(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, allow_nan=False)}\n\n".encode()
