"""A request that was taken."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Result
from zeus_trt.serving.report import ServedReport
from zeus_trt.serving.waiting_call import Caller


class FullError(ZeusError):
    """The queue is full: try again later."""


class LateError(ZeusError):
    """The time limit of a request passed."""


class EndedError(Exception):
    """Ends a trajectory whose request is over already: it was cancelled, or its time limit passed."""


@dataclass(eq=False)
class Ticket(Caller):
    """A request, and who waits for its result.

    The future counts as pending until the end, so that it can be cancelled while the trajectory runs.

    Args:
        conditioning: As in ``Session.generate``.
        settings: The same.
        scheduler: A diffusers scheduler; None for the session's own.
        submitted: When, in seconds of a clock.
        due: Requests that are due earlier go first.
        limit: When the request fails if it is not done; infinity for never.
        deadline: Seconds that the caller gave it, if any.
        adapter: Name of the bundle's adapter; None for the session's own.
        queue_seconds: Time to its begin.
    """

    conditioning: Mapping[str, torch.Tensor] | None
    settings: Mapping[str, Any]
    scheduler: Any
    submitted: float
    due: float
    limit: float
    deadline: float | None = None
    adapter: str | None = None
    queue_seconds: float = field(default=0.0, init=False)
    future: "Future[Result]" = field(default_factory=Future)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_settled: bool = False

    @property
    def has_deadline(self) -> bool:
        """Whether the caller gave one."""
        return self.deadline is not None

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()

    def settle(self, outcome: Result | BaseException) -> str:
        """Ends the request, unless it has ended.

        Returns:
            How: ``finished``, ``failed``, ``cancelled``; empty if it had ended before.
        """
        with self._lock:
            if self._is_settled:
                return ""
            self._is_settled = True
        if not self.future.set_running_or_notify_cancel():
            return "cancelled"
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
            return "failed"
        self.future.set_result(outcome)
        return "finished"

    def report(self, result: Result) -> Result:
        """The result of ``Session.generate``, with what the trajectory shared."""
        shared = ServedReport(
            **vars(result.report),
            shared_calls=self.shared_calls,
            mean_rows=self.rows / max(self.calls, 1),
            wait_seconds=self.wait_seconds,
            queue_seconds=self.queue_seconds,
        )
        return Result(result.latents, shared)

    def refuse(self) -> LateError:
        """What a request fails with after its time limit."""
        return LateError(
            f"time_limit: got {self.limit - self.submitted:g} s, which have passed; expected the request to end "
            "within them. Raise it, or send fewer requests at once."
        )
