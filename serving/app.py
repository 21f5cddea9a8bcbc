"""The service over HTTP. It needs FastAPI."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import anyio
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from zeus_trt.errors import ZeusError
from zeus_trt.serving.answers import describe_result, wait_for
from zeus_trt.serving.event_stream import EventStream
from zeus_trt.serving.http_errors import RefusedError, describe_error, describe_status
from zeus_trt.serving.image_request import ImageRequest, make_schema, read_request
from zeus_trt.serving.limits import Limits
from zeus_trt.serving.metrics import Metrics
from zeus_trt.serving.service import Service

_GONE = 499  # the client closed the connection: nobody reads this
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


def create_app(
    service: Service,
    limits: Limits | None = None,
    api_key: str | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The application; it has no state but that of ``service``, which it does not close.

    Args:
        service: What makes the pictures.
        limits: The most that clients may ask for.
        api_key: What they must send as ``Authorization: Bearer``; nothing by default.
        hosts: The only names that they may call the server by; by default any. It keeps other sites that a browser
            visits from a server that only this machine reaches.
    """
    limits = limits or Limits()
    metrics = Metrics(service)
    app = FastAPI(title="zeus-trt", docs_url=None, redoc_url=None)
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    _add_errors(app, metrics)
    _add_pictures(app, service, limits, metrics, Depends(_KeyCheck(api_key)))
    _add_states(app, service, metrics, Depends(_KeyCheck(api_key)))
    return app


class _KeyCheck:
    """Refuses requests without the key."""

    def __init__(self, api_key: str | None):
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, request: Request) -> None:
        if self._key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
            raise RefusedError(
                401, "invalid_api_key", "authorization: got no valid key; expected Bearer and the API key. Send it."
            )


def _add_pictures(app: FastAPI, service: Service, limits: Limits, metrics: Metrics, key: Any) -> None:
    open_streams: set[EventStream] = set()
    body = {"required": True, "content": {"application/json": {"schema": make_schema()}}}

    @app.post("/v1/images/generations", dependencies=[key], openapi_extra={"requestBody": body})
    async def generate(request: Request) -> Response:
        """Makes pictures."""
        began = time.monotonic()
        asked = await _read(request, limits)

        def note(made: Any) -> dict[str, Any]:
            metrics.note_result(asked, made.report, time.monotonic() - began)
            return describe_result(asked, made)

        if not asked.stream:
            made = await wait_for(asyncio.wrap_future(service.submit(asked, limits.seconds)), request)
            metrics.note_answer(200)
            return JSONResponse(await anyio.to_thread.run_sync(note, made))
        if len(open_streams) >= limits.streams:
            raise RefusedError(
                429, "too_many_streams", f"stream: got more than {limits.streams} at a time; expected fewer. Try later."
            )
        stream = EventStream(note, limits.seconds, open_streams.discard)
        open_streams.add(stream)
        try:
            await stream.start(service, asked, request)
        except BaseException:
            stream.close()
            raise
        metrics.note_answer(200)
        return stream.respond()


async def _read(request: Request, limits: Limits) -> ImageRequest:
    """Reads and checks the body; a browser sends no JSON to another site unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "content_type", "content-type: got another; expected application/json. Send it.")
    content = b""
    try:
        with anyio.fail_after(limits.body_seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.body:
                    raise RefusedError(
                        413,
                        "too_large",
                        f"request: got more than {limits.body} bytes; expected fewer. Make it shorter.",
                    )
    except TimeoutError as error:
        raise RefusedError(
            408, "slow_request", f"request: got no end within {limits.body_seconds:g} s; expected one. Send it faster."
        ) from error
    return read_request(content, limits)


def _add_states(app: FastAPI, service: Service, metrics: Metrics, key: Any) -> None:
    page = files("zeus_trt.serving").joinpath("page.html").read_text(encoding="utf-8")
    policy = _POLICY.format(script=_digest(page, "script"), style=_digest(page, "style"))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={**_PAGE_HEADERS, "Content-Security-Policy": policy})

    @app.get("/healthz")
    async def say_alive() -> dict[str, str]:
        """Whether the process runs."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def say_ready(response: Response) -> dict[str, str]:
        """Whether requests are taken: 503 where not."""
        response.status_code = 503 if service.is_draining else 200
        return {"status": "draining" if service.is_draining else "ready"}

    @app.get("/v1/model", dependencies=[key])
    async def describe_model() -> dict[str, Any]:
        """What the model takes."""
        return service.model.describe()

    @app.get("/metrics", dependencies=[key])
    def write_metrics() -> Response:
        """The metrics of Prometheus."""
        return Response(metrics.write(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _digest(page: str, tag: str) -> str:
    """What a policy of contents calls the only element of this kind."""
    content = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _add_errors(app: FastAPI, metrics: Metrics) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        status, body, headers = describe_error(error)
        metrics.note_answer(status)
        return JSONResponse(body, status, headers=dict(headers))

    async def answer_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse(describe_status(error.status_code), error.status_code, headers=error.headers)

    async def leave(request: Request, error: Exception) -> Response:
        return Response(status_code=_GONE)

    for kind, handler in ((ZeusError, answer), (HTTPException, answer_status), (ClientDisconnect, leave)):
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, answer)
