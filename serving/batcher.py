"""Many requests on one engine."""

import asyncio
import heapq
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EnginePair, Result, Session
from zeus_trt.runtime.request import expect
from zeus_trt.serving.dispatcher import PATIENCE, Dispatcher, SharedEngine
from zeus_trt.serving.lane import Lane
from zeus_trt.serving.report import Counters
from zeus_trt.serving.ticket import EndedError, FullError, Ticket
from zeus_trt.zeus_graph.counts import check_count, is_finite, show

_MOST = 1 << 16
_REMEMBERED = 16  # sessions of other schedulers


class Batcher(AbstractContextManager):
    """Runs many requests at a time on the engine of a session; their rows share its calls.

    A skipped step is no call, so requests of any plan, number of steps, solver, guidance and seed share calls as long
    as their rows have the same shapes and types. Each request runs as ``Session.generate`` runs it, in a thread of its
    own, and has the same result as there, but for the last bits where an engine's sums depend on the size of a batch.

    ``session`` is a session of the same bundle whose calls meet those of all others: give it to ``accelerate`` as its
    engine. ``engine`` is the pair of engines behind it, for a session of another scheduler.

    Leaving the ``with`` block closes it: it waits for all requests, or cancels them after an error.

    Args:
        session: A session; it stays open when the batcher is closed.
        max_rows: The most rows of a call of the engine; guidance has two per image.
        max_wait: Seconds that a call with room waits at most for others, while any are expected.
        max_active: Trajectories that run at a time, each in a thread; twice ``max_rows`` by default.
        max_queue: Requests that wait for their begin.
        batch_sizes: The only sizes of a call, which is padded to the next one; by default those that the engine takes.
            With a single size the load does not change the last bits of a result.

    Raises:
        ZeusError: A setting that is not a number in its range, or sizes that the engine does not take.
    """

    def __init__(
        self,
        session: Session,
        *,
        max_rows: int = 8,
        max_wait: float = 0.02,
        max_active: int | None = None,
        max_queue: int = 256,
        batch_sizes: Sequence[int] | None = None,
    ):
        expect("session", session, Session, "a Session")
        for name, value in (
            ("max_rows", max_rows),
            ("max_active", 1 if max_active is None else max_active),
            ("max_queue", max_queue),
        ):
            check_count(name, value, 1, _MOST)
        for size in batch_sizes or ():
            check_count("batch_sizes", size, 1, _MOST)
        if not is_finite(max_wait) or not 0 <= max_wait <= PATIENCE:
            raise ZeusError(f"max_wait: got {show(max_wait)}; expected 0 to {PATIENCE:g} seconds. Change it.")
        self._max_active, self._max_queue = max_active or 2 * max_rows, max_queue
        manifest = session.bundle.manifest
        make_lane = partial(Lane.of, manifest=manifest, max_rows=max_rows, batch_sizes=batch_sizes)
        make_lane(session.engine)  # refuses sizes now
        by_row = tuple(spec.name for spec in manifest.inputs if spec.axes[:1] == manifest.latents.axes[:1])
        self._dispatcher = Dispatcher(
            lambda letter: make_lane(session.quantized if letter == "Q" else session.engine),
            tuple(dict.fromkeys((manifest.inputs[0].name, manifest.inputs[1].name, *by_row))),
            max_wait,
            self._end_late,
        )
        self.engine = EnginePair(
            SharedEngine(self._dispatcher, "F", session.engine), SharedEngine(self._dispatcher, "Q")
        )
        self._open = lru_cache(_REMEMBERED)(partial(Session, session.bundle, engine=self.engine, device=session.device))
        self.session = self._open()
        self.session.solver, self.session.backend_reason = session.solver, session.backend_reason
        self._lock = threading.Lock()
        self._queue: list[tuple[float, int, Ticket]] = []
        self._numbers = itertools.count()
        self._active: set[Ticket] = set()
        self._threads: list[threading.Thread] = []
        self._num_workers = 0
        self._counts: Counter[str] = Counter()
        self._is_closed = False

    def submit(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        scheduler: Any = None,
        deadline: float | None = None,
        time_limit: float | None = None,
        **settings: Any,
    ) -> "Future[Result]":
        """Takes a request; any thread may call it.

        Args:
            conditioning: As in ``Session.generate``.
            scheduler: A diffusers scheduler to use instead of the session's.
            deadline: Seconds from now; requests that are due earlier go first. By default all are due after a minute. A
                request that gives no plan gets the best of the bundle's calibrated plans that is expected to end in
                time; beside ``min_psnr`` one of at least so much.
            time_limit: Seconds from now after which it fails.
            **settings: As in ``Session.generate``: plan or ``min_psnr``, steps, guidance, seed, mode, ``on_step`` ...
                Callbacks run in the thread of the request; one that raises fails this request.

        Returns:
            A future of the result, whose report is a ``ServedReport``. It can be cancelled until it is done: then the
            request makes no further call of the engine.

        Raises:
            FullError: Too many requests wait.
            ZeusError: The batcher is closed, or a time is not a number. The future raises errors of other settings.
        """
        for name, value in (("deadline", deadline), ("time_limit", time_limit)):
            if value is not None and (not is_finite(value) or value <= 0):
                raise ZeusError(f"{name}: got {show(value)}; expected seconds above 0. Change it.")
        now = time.monotonic()
        limit = math.inf if time_limit is None else now + time_limit
        due = now + (PATIENCE if deadline is None else deadline)
        ticket = Ticket(conditioning, settings, scheduler, now, due, limit)
        with self._lock:
            if self._is_closed:
                raise ZeusError("batcher: got a request after it was closed; expected an open one. Make another.")
            self._check_room()
            self._counts["submitted"] += 1
            heapq.heappush(self._queue, (ticket.due, next(self._numbers), ticket))
            self._start_thread()
        ticket.future.add_done_callback(partial(self._drop, ticket))
        return ticket.future

    async def generate(self, conditioning: Mapping[str, torch.Tensor] | None = None, **settings: Any) -> Result:
        """As ``submit``, and waits for the result; cancelling the task cancels the request."""
        return await asyncio.wrap_future(self.submit(conditioning, **settings))

    @property
    def counters(self) -> Counters:
        """What it did so far, and what it does now."""
        with self._lock:
            numbers = {**self._counts, "queued": len(self._queue), "active": len(self._active)}
        return self._dispatcher.count(**numbers)

    def close(self, cancel: bool = False) -> None:
        """Takes no more requests, ends all that it has, and its threads.

        Args:
            cancel: Cancel them instead of waiting for their results.
        """
        with self._lock:
            self._is_closed = True
            tickets = [*self._active, *(ticket for *_, ticket in self._queue)] if cancel else []
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for ticket in tickets:
            ticket.future.cancel()
        for thread in threads:
            thread.join()
        self._dispatcher.close()

    def __exit__(self, *error: Any) -> None:
        self.close(cancel=error[0] is not None)

    def _check_room(self) -> None:
        waiting = len(self._queue) + len(self._active) - self._max_active
        if waiting >= self._max_queue:
            self._counts["refused"] += 1
            raise FullError(
                f"queue: got a request when {waiting} wait already; expected fewer than max_queue, {self._max_queue}. "
                "Try again later."
            )

    def _start_thread(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self._num_workers < self._max_active:
            self._num_workers += 1
            thread = threading.Thread(target=self._work, name="zeus-trt-request", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        """Runs requests until none is left."""
        while ticket := self._begin_next():
            outcome: Result | BaseException
            queued = time.monotonic() - ticket.submitted
            try:
                if ticket.limit <= time.monotonic():
                    raise ticket.refuse()
                session = self._open(scheduler=ticket.scheduler) if ticket.scheduler is not None else self.session
                with self._dispatcher.serve(ticket):
                    outcome = ticket.report(session.generate(ticket.conditioning, **ticket.settings), queued)
            except BaseException as error:
                outcome = error
            with self._lock:
                self._active.discard(ticket)
            self._settle(ticket, outcome)

    def _begin_next(self) -> Ticket | None:
        with self._lock:
            if self._queue:
                ticket = heapq.heappop(self._queue)[-1]
                self._active.add(ticket)
                return ticket
            self._num_workers -= 1
            return None

    def _settle(self, ticket: Ticket, outcome: Result | BaseException) -> None:
        if how := ticket.settle(outcome):
            with self._lock:
                self._counts[how] += 1

    def _drop(self, ticket: Ticket, future: "Future[Result]") -> None:
        """The request is over; if it was cancelled, its rows go."""
        if future.cancelled():
            self._remove(ticket)
            self._settle(ticket, EndedError())
            self._dispatcher.leave(ticket)

    def _remove(self, ticket: Ticket) -> None:
        with self._lock:
            self._queue = [entry for entry in self._queue if entry[-1] is not ticket]
            heapq.heapify(self._queue)

    def _end_late(self) -> None:
        """Fails requests that wait for their begin beyond their time limit."""
        now = time.monotonic()
        with self._lock:
            late = [ticket for *_, ticket in self._queue if ticket.limit <= now]
        for ticket in late:
            self._remove(ticket)
            self._settle(ticket, ticket.refuse())
