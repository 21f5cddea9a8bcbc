"""Requests that wait for their begin, and those that run."""

import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Result
from zeus_trt.serving.lanes import has_room
from zeus_trt.serving.ticket import EndedError, FullError, Ticket

NAME = "zeus-trt-"
"""How the names of all threads begin."""


class Desk:
    """A thread that begins and ends requests; those that are due first begin first.

    Args:
        max_active: Requests that run at a time.
        max_queue: Requests that wait for their begin.
        begin: Begins a request; it calls ``end`` when that is over, and so must whatever it raises.
        leave: Called with a request that is over before its end: it was cancelled, or its time limit passed.
        close: Called when all requests are over, after ``close``.
        max_adapters: Adapters of the requests that run at a time. The first request that would bring another one waits,
            and those behind it.
    """

    def __init__(
        self,
        max_active: int,
        max_queue: int,
        begin: Callable[[Ticket], None],
        leave: Callable[[Ticket], None],
        close: Callable[[], None],
        max_adapters: int,
    ):
        self._max_adapters = max_adapters
        self.max_active, self._max_queue = max_active, max_queue
        self._begin, self._leave, self._close = begin, leave, close
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Ticket]] = []
        self._numbers = itertools.count()
        self._active: set[Ticket] = set()
        self._ended: deque[tuple[Ticket, Result | BaseException]] = deque()
        self._counts: Counter[str] = Counter()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"{NAME}desk", daemon=True)
        self._thread.start()

    def put(self, ticket: Ticket) -> bool:
        """Takes a request.

        Returns:
            Whether it begins at once.

        Raises:
            FullError: Too many wait.
            ZeusError: It was closed.
        """
        with self._changed:
            if self._is_closed:
                raise ZeusError("batcher: got a request after it was closed; expected an open one. Make another.")
            waiting = len(self._queue) + len(self._active) - self.max_active
            if waiting >= self._max_queue:
                self._counts["refused"] += 1
                raise FullError(
                    f"queue: got a request when {waiting} wait already; expected fewer than max_queue, "
                    f"{self._max_queue}. Try again later."
                )
            self._counts["submitted"] += 1
            heapq.heappush(self._queue, (ticket.due, next(self._numbers), ticket))
            self._changed.notify_all()
        return waiting < 0

    def end(self, ticket: Ticket, outcome: Result | BaseException) -> None:
        """A request that ran is over; any thread may say so, and does not wait for what the caller does with it."""
        with self._changed:
            self._active.discard(ticket)
            self._ended.append((ticket, outcome))
            self._changed.notify_all()

    def drop(self, ticket: Ticket) -> None:
        """A request was cancelled."""
        with self._changed:
            self._remove(ticket)
        self._settle(ticket, EndedError())
        self._leave(ticket)

    def count(self) -> dict[str, int]:
        """Numbers of requests, by what became of them."""
        with self._changed:
            return {**self._counts, "queued": len(self._queue), "active": len(self._active)}

    def close(self, cancel: bool) -> None:
        """Takes no more, and waits until all are over; in a thread of the batcher it does not wait.

        Args:
            cancel: Cancel them first.
        """
        with self._changed:
            self._is_closed = True
            tickets = self._list() if cancel else []
            self._changed.notify_all()
        for ticket in tickets:
            ticket.future.cancel()
        if not threading.current_thread().name.startswith(NAME):
            self._thread.join()

    def _run(self) -> None:
        while work := self._await_work():
            work()
        self._close()

    def _await_work(self) -> Callable[[], None] | None:
        """What is to be done next; None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                limit, late = min(
                    ((ticket.limit, ticket) for ticket in self._list()),
                    default=(math.inf, None),
                    key=lambda one: one[0],
                )
                if self._ended:
                    ticket, outcome = self._ended.popleft()
                    return lambda: self._settle(ticket, outcome)
                if late and limit <= now:
                    self._remove(late)
                    return lambda: self._end_late(late)
                if self._queue and len(self._active) < self.max_active and self._may_begin(self._queue[0][-1]):
                    ticket = heapq.heappop(self._queue)[-1]
                    self._active.add(ticket)
                    return lambda: self._begin(ticket)
                if self._is_closed and not self._queue and not self._active:
                    return None
                self._changed.wait(None if limit == math.inf else limit - now)

    def _may_begin(self, ticket: Ticket) -> bool:
        return has_room(ticket.adapter, (one.adapter for one in self._active), self._max_adapters)

    def _end_late(self, ticket: Ticket) -> None:
        self._settle(ticket, ticket.refuse())
        self._leave(ticket)

    def _settle(self, ticket: Ticket, outcome: Result | BaseException) -> None:
        if how := ticket.settle(outcome):
            with self._changed:
                self._counts[how] += 1

    def _list(self) -> list[Ticket]:
        return [*(ticket for ticket in self._active if not ticket.is_over), *(ticket for *_, ticket in self._queue)]

    def _remove(self, ticket: Ticket) -> None:
        self._queue = [entry for entry in self._queue if entry[-1] is not ticket]
        heapq.heapify(self._queue)
