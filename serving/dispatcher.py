"""Threads call an engine, and their calls meet."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import Asked
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.serving.call_form import CallForms
from zeus_trt.serving.call_queue import CallQueue
from zeus_trt.serving.inline import Calls, Ending, Trajectory, send
from zeus_trt.serving.lanes import Lanes, name_lane
from zeus_trt.serving.report import Counters
from zeus_trt.serving.ticket import EndedError, Ticket
from zeus_trt.serving.waiting_call import Caller, Part, WaitingCall

PATIENCE = 60.0
"""Seconds in which a call is due whose caller gave no deadline: so it is not overtaken for ever."""


_RECENT = 0.05  # weight of a call in the mean of the last ones


class Dispatcher:
    """Gathers the calls of many threads, and calls the engines in one thread.

    Args:
        lanes: The engines; closed with it.
        by_row: Names of the inputs with a row per image, the latents first and the timestep second.
        max_wait: As in ``CallQueue``.
    """

    def __init__(self, lanes: Lanes, by_row: tuple[str, ...], max_wait: float):
        self._lanes, self._forms = lanes, CallForms(by_row)
        self._begun: deque[Trajectory] = deque()
        self._resumed: deque[tuple[Trajectory, WaitingCall]] = deque()
        self._queue = CallQueue(max_wait)
        self._changed = threading.Condition()
        self._here = threading.local()
        self._is_closed = False
        self._calls = self._rows = self._padding = 0
        self._engine_seconds = self._pace = 0.0
        self._thread = threading.Thread(target=self._run, name="zeus-trt-dispatcher", daemon=True)
        self._thread.start()

    def call(self, letter: str, inputs: dict[str, Any]) -> torch.Tensor:
        """Waits for the answer of an engine, (rows, ...).

        Raises:
            ZeusError: Inputs that disagree in their rows, or a closed dispatcher; and whatever the engine raises.
        """
        caller = getattr(self._here, "caller", None)
        if caller is None:
            caller = self._here.caller = Caller()
        lane = self._lanes.choose(letter)
        ticket = caller if isinstance(caller, Ticket) else None
        now = time.monotonic()
        call = self._forms.make(caller, letter, inputs, now, ticket.due if ticket else now + PATIENCE)
        with self._changed:
            if self._is_closed:
                raise ZeusError("engine: got a call of a closed batcher; expected an open one. Make another.")
            if ticket and ticket.is_over:
                raise EndedError
            if ticket and ticket.limit <= now:
                raise ticket.refuse()
            if self._queue.add(call, lane.most):
                self._changed.notify()
        output = call.wait(None if ticket is None or ticket.limit == math.inf else max(ticket.limit - now, 0.0))
        if output is None:
            assert ticket
            call.finish(EndedError())
            self.leave(ticket)
            raise ticket.refuse()
        return output

    def begin(self, ticket: Ticket, calls: Calls, end: Ending) -> None:
        """Runs a trajectory in the dispatcher's thread.

        Args:
            ticket: The request.
            calls: As ``Prepared.ask``.
            end: Called at the end with the ticket, and its result or its error; it must be quick.
        """
        with self._changed:
            self._begun.append(Trajectory(ticket, calls, end))
            self._changed.notify()

    def expect(self, caller: Caller) -> None:
        """A caller will soon call for the first time."""
        with self._changed:
            self._queue.expect(caller, None, time.monotonic())

    @contextmanager
    def serve(self, caller: Caller) -> Iterator[None]:
        """Calls of this thread within the block are those of ``caller``, which is expected to call soon."""
        self._here.caller = caller
        try:
            yield
        finally:
            self._here.caller = None
            self.leave(caller)

    def leave(self, caller: Caller) -> None:
        """A caller calls no more; a call of it that waits ends with ``EndedError``."""
        with self._changed:
            for call in self._queue.forget(caller):
                call.finish(EndedError())
            self._changed.notify()

    def close(self) -> None:
        """Answers the calls that wait, and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._lanes.close()

    def measure_call(self) -> float:
        """Seconds that calls took of late, with their waiting; 0 at first."""
        with self._changed:
            return self._pace

    def count(self, **others: int) -> Counters:
        """The counters, with those of others."""
        with self._changed:
            return Counters(
                calls=self._calls,
                rows=self._rows,
                padding=self._padding,
                engine_seconds=self._engine_seconds,
                waiting=len(self._queue) + len(self._begun) + len(self._resumed),
                **others,
            )

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            while self._begun:
                self._go_on(self._begun.popleft(), next)
            while self._resumed:
                trajectory, call = self._resumed.popleft()
                self._go_on(trajectory, partial(send, call))
            if parts := self._await_batch():
                self._answer(parts)
            elif self._is_closed and not self._resumed:
                return

    def _go_on(self, trajectory: Trajectory, step: Callable[[Calls], Asked]) -> None:
        """A trajectory goes on to its next call, or to its end."""
        ticket = trajectory.ticket
        try:
            if ticket.is_over:
                raise EndedError
            letter, inputs = step(trajectory.calls)
            letter = name_lane(letter, ticket.adapter)
            lane, now = self._lanes.choose(letter), time.monotonic()
            call = self._forms.make(ticket, letter, inputs, now, ticket.due, partial(self._resume, trajectory))
            with self._changed:
                self._queue.put(call, lane.most)
        except BaseException as error:
            self.leave(ticket)
            trajectory.end(ticket, error.value if isinstance(error, StopIteration) else error)

    def _resume(self, trajectory: Trajectory, call: WaitingCall) -> None:
        self._resumed.append((trajectory, call))

    def _await_batch(self) -> list[Part]:
        """The rows of the next call; none at the end, or where trajectories can go on."""
        with self._changed:
            while True:
                if self._begun or self._resumed:
                    return []
                now = time.monotonic()
                if parts := self._queue.take(math.inf if self._is_closed else now):
                    return parts
                if self._is_closed:
                    return []
                change = self._queue.next_change()
                self._changed.wait(None if change is None else max(change - now, 0.0))

    def _answer(self, parts: list[Part]) -> None:
        rows, began = sum(part.rows for part in parts), time.monotonic()
        error: BaseException | None = None
        padding = 0
        try:
            with self._lanes.use(str(parts[0].call.key[0])) as lane:
                padding = lane.pad(rows)
                output = lane.run(parts).clone()  # engines use their buffers again
            for part, answer in zip(parts, output.split([part.rows for part in parts]), strict=True):
                part.call.answer(answer)
        except BaseException as caught:
            error = caught
        now = time.monotonic()
        with self._changed:
            self._calls, self._rows = self._calls + 1, self._rows + rows
            self._padding += padding
            self._queue.free(now)
            self._engine_seconds += now - began
            for part in parts:
                self._settle(part.call, rows, is_shared=len(parts) > 1, seconds=now - began, error=error)

    def _settle(
        self, call: WaitingCall, rows: int, is_shared: bool, seconds: float, error: BaseException | None
    ) -> None:
        caller = call.caller
        caller.calls, caller.rows = caller.calls + 1, caller.rows + rows
        caller.shared_calls += is_shared
        call.engine_seconds += seconds
        if call.is_over or not (error or call.is_whole):
            return
        now = time.monotonic()
        caller.calls_left = max(caller.calls_left - 1, 0)
        took = now - call.arrived
        self._pace += (took - self._pace) * (_RECENT if self._pace else 1.0)
        caller.wait_seconds += now - call.arrived - call.engine_seconds
        if error:
            self._queue.forget(caller)
        else:
            self._queue.expect(caller, call.key, now)
        call.finish(error)


class SharedEngine:
    """An engine whose calls meet those of other threads.

    Args:
        dispatcher: Gathers them.
        lane: Which engine: ``F`` or ``Q``, and an adapter.
        engine: The engine behind it, or one of its kind, if it is open already; it says what it is.
        adapter: Digest of the adapter in its weights; empty without one.
    """

    def __init__(self, dispatcher: Dispatcher, lane: str, engine: Denoiser | None = None, adapter: str = ""):
        self._dispatcher, self._letter, self.adapter = dispatcher, lane, adapter
        self.backend = getattr(engine, "backend", type(engine).__name__)
        self.info = getattr(engine, "info", None)

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """As the engine's own call, (rows, ...)."""
        return self._dispatcher.call(self._letter, inputs)
