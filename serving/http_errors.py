"""Errors as a client of HTTP sees them, in the form of OpenAI's API."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.serving.image_request import find_field
from zeus_trt.serving.service import ClosingError
from zeus_trt.serving.ticket import FullError, LateError

logger = logging.getLogger(__name__)

_RETRY = {"Retry-After": "1"}
_OF_MODEL = ("model_output", "latents", "denoiser")  # what errors name that no request can change


class RefusedError(ZeusError):
    """A request that is refused before it is read to its end, with a status of HTTP."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code


def describe_error(error: BaseException) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Status, body and headers of an answer.

    Args:
        error: A ``ZeusError`` is the client's, unless it names what the model made. Any other one is logged, and the
            client reads its kind only.
    """
    if isinstance(error, RefusedError):
        return error.status, _show(error, _name_type(error.status), error.code), _RETRY if error.status == 429 else {}
    if isinstance(error, FullError):
        return 429, _show(error, "rate_limit_error", "queue_full"), _RETRY
    if isinstance(error, LateError):
        return 504, _show(error, "timeout_error", "time_limit"), {}
    if isinstance(error, ClosingError):
        return 503, _show(error, "server_error", "closing"), _RETRY
    if isinstance(error, ZeusError) and str(error).partition(":")[0] not in _OF_MODEL:
        return 400, _show(error, "invalid_request_error", "invalid_value", find_field(error)), {}
    if not isinstance(error, ZeusError):
        logger.error("a request failed", exc_info=error)
        error = ZeusError(
            f"server: got a {type(error).__name__}; expected no such error, which is a fault of the server. Try again, "
            "and tell who runs it."
        )
    return 500, _show(error, "server_error", "internal"), {}


def describe_status(status: int) -> dict[str, Any]:
    """The body of an answer that only has a status, such as 404."""
    error = ZeusError(f"request: got {status}, {HTTPStatus(status).phrase}; expected a page of this server. Change it.")
    return _show(error, _name_type(status), HTTPStatus(status).name.lower())


def _name_type(status: int) -> str:
    known = {401: "authentication_error", 429: "rate_limit_error"}
    return known.get(status, "invalid_request_error" if status < 500 else "server_error")


def _show(error: ZeusError, type_: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": type_, "param": param, "code": code}}
