"""Many requests on one engine."""

import asyncio
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Denoiser, EnginePair, Result, Session
from zeus_trt.runtime.bundle.mixture import Choice
from zeus_trt.runtime.menu import Aim
from zeus_trt.runtime.prepared import Prepared
from zeus_trt.runtime.request import expect
from zeus_trt.serving.desk import NAME, Desk
from zeus_trt.serving.dispatcher import PATIENCE, Dispatcher, SharedEngine
from zeus_trt.serving.lane import Lane
from zeus_trt.serving.lanes import MAX_ADAPTERS, Lanes, name_lane
from zeus_trt.serving.report import Counters
from zeus_trt.serving.ticket import EndedError, Ticket
from zeus_trt.zeus_graph.counts import check_count, is_finite, show

_MOST = 1 << 16
_REMEMBERED = 16  # sessions of other schedulers


class Batcher(AbstractContextManager):
    """Runs many requests at a time on the engine of a session; their rows share its calls.

    A skipped step is no call, so requests of any plan, number of steps, solver, guidance and seed share calls as long
    as their rows have the same shapes and types. Each request has the result of ``Session.generate``, but for the last
    bits where an engine's sums depend on the size of a batch. All run in one thread; a request with functions of the
    caller's has its own.

    ``session`` is a session of the same bundle whose calls meet those of all others: give it to ``accelerate`` as its
    engine. ``engine`` is the pair of engines behind it, for a session of another scheduler.

    Leaving the ``with`` block closes it: it waits for all requests, or cancels them after an error.

    Args:
        session: A session; it stays open when the batcher is closed.
        max_rows: The most rows of a call of the engine; guidance has two per image.
        max_wait: Seconds that a call with room waits at most for others, while any are expected and the engine is free.
        max_active: Trajectories that run at a time; twice ``max_rows`` by default.
        max_queue: Requests that wait for their begin.
        batch_sizes: The only sizes of a call, which is padded to the next one; by default those that the engine takes.
            With a single size the load does not change the last bits of a result.
        max_adapters: Adapters whose engines are open at a time, beside the session's: the one that was used least
            recently is closed for another. Requests with more of them wait until others are done.

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
        max_adapters: int = MAX_ADAPTERS,
    ):
        expect("session", session, Session, "a Session")
        for name, value in (
            ("max_rows", max_rows),
            ("max_active", 1 if max_active is None else max_active),
            ("max_queue", max_queue),
            ("max_adapters", max_adapters),
        ):
            check_count(name, value, 1, _MOST)
        for size in batch_sizes or ():
            check_count("batch_sizes", size, 1, _MOST)
        if not is_finite(max_wait) or not 0 <= max_wait <= PATIENCE:
            raise ZeusError(f"max_wait: got {show(max_wait)}; expected 0 to {PATIENCE:g} seconds. Change it.")
        manifest = session.bundle.manifest
        make_lane = partial(Lane.of, manifest=manifest, max_rows=max_rows, batch_sizes=batch_sizes)
        make_lane(session.engine)  # refuses sizes now
        by_row = tuple(spec.name for spec in manifest.inputs if spec.axes[:1] == manifest.latents.axes[:1])
        self._given = session
        self._lanes = Lanes(lambda lane: make_lane(self._open_engine(*lane.partition(":")[::2])), max_adapters)
        self._dispatcher = Dispatcher(
            self._lanes,
            tuple(dict.fromkeys((manifest.inputs[0].name, manifest.inputs[1].name, *by_row))),
            max_wait,
        )
        self._open = lru_cache(_REMEMBERED)(self._open_session)
        self.session = self._find_session(None, None)
        self.engine = self._share(session.bundle, None)
        begin, leave, close = self._begin, self._dispatcher.leave, self._dispatcher.close
        self._desk = Desk(max_active or 2 * max_rows, max_queue, begin, leave, close, max_adapters)

    def submit(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        scheduler: Any = None,
        adapter: Choice | None = None,
        deadline: float | None = None,
        time_limit: float | None = None,
        **settings: Any,
    ) -> "Future[Result]":
        """Takes a request; any thread may call it.

        Args:
            conditioning: As in ``Session.generate``.
            scheduler: A diffusers scheduler to use instead of the session's.
            adapter: What to use instead of the session's adapter, as in ``Bundle.with_adapter``. Its engine is opened
                at the first request. Rows of other adapters never share a call.
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
            ZeusError: The batcher is closed, a time is not a number, or the bundle has no such adapter. The future
                raises errors of other settings.
        """
        for name, value in (("deadline", deadline), ("time_limit", time_limit)):
            if value is not None and (not is_finite(value) or value <= 0):
                raise ZeusError(f"{name}: got {show(value)}; expected seconds above 0. Change it.")
        now = time.monotonic()
        limit = math.inf if time_limit is None else now + time_limit
        due = now + (PATIENCE if deadline is None else deadline)
        ticket = Ticket(conditioning, settings, scheduler, now, due, limit, deadline, self._name(adapter))
        if self._desk.put(ticket):
            self._dispatcher.expect(ticket)
        ticket.future.add_done_callback(partial(self._drop, ticket))
        return ticket.future

    async def generate(self, conditioning: Mapping[str, torch.Tensor] | None = None, **settings: Any) -> Result:
        """As ``submit``, and waits for the result; cancelling the task cancels the request."""
        return await asyncio.wrap_future(self.submit(conditioning, **settings))

    def open_session(self, adapter: Choice) -> Session:
        """As ``session``, for pipelines with this adapter of the bundle.

        Raises:
            ZeusError: The bundle has no such adapter, or the engine takes none.
        """
        return self._find_session(None, self._name(adapter))

    @property
    def counters(self) -> Counters:
        """What it did so far, and what it does now."""
        return self._dispatcher.count(**self._desk.count())

    def close(self, cancel: bool = False) -> None:
        """Takes no more requests, ends all that it has, and its threads.

        Args:
            cancel: Cancel them instead of waiting for their results.
        """
        self._desk.close(cancel)

    def __exit__(self, *error: Any) -> None:
        self.close(cancel=error[0] is not None)

    def _begin(self, ticket: Ticket) -> None:
        """Begins a request in the dispatcher's thread; a request with functions of the caller gets a new thread."""
        queued = time.monotonic() - ticket.submitted
        try:
            if ticket.is_over:
                raise EndedError
            session = self._find_session(ticket.scheduler, ticket.adapter)
            aim = self._choose_aim(ticket) if ticket.deadline is not None else None
            run = session.prepare(ticket.conditioning, aim=aim, **ticket.settings)
        except BaseException as error:
            self._dispatcher.leave(ticket)
            self._desk.end(ticket, error)
            return
        ticket.queue_seconds, ticket.calls_left = queued, run.trajectory.count_calls()
        if run.is_plain:
            self._dispatcher.begin(ticket, run.ask(), self._end)
        else:
            threading.Thread(target=self._run, args=(ticket, run), name=f"{NAME}request", daemon=True).start()

    def _name(self, adapter: Choice | None) -> str | None:
        """The same name for the same adapter; None for the session's own."""
        if adapter is None:
            return None
        bundle = self._given.bundle
        chosen = bundle.with_adapter(adapter).adapter
        return None if chosen is None or chosen == bundle.adapter else chosen.name

    def _find_session(self, scheduler: Any, adapter: str | None) -> Session:
        """A session of these, whose engine is open."""
        session = self._open(scheduler, adapter)
        self._lanes.choose(name_lane("F", adapter))
        return session

    def _open_session(self, scheduler: Any, adapter: str | None) -> Session:
        given = self._given
        bundle = given.bundle.with_adapter(adapter) if adapter else given.bundle
        session = Session(bundle, engine=self._share(bundle, adapter), scheduler=scheduler, device=given.device)
        if scheduler is None:
            session.solver, session.backend_reason = given.solver, given.backend_reason
        return session

    def _share(self, bundle: Bundle, adapter: str | None) -> EnginePair:
        full, quantized = (name_lane(letter, adapter) for letter in "FQ")
        digest = bundle.adapter.sha256 if bundle.adapter else ""
        return EnginePair(
            SharedEngine(self._dispatcher, full, self._given.engine, digest),
            SharedEngine(self._dispatcher, quantized, adapter=digest),
        )

    def _open_engine(self, letter: str, adapter: str) -> Denoiser:
        given = self._given
        if not adapter:
            return given.quantized if letter == "Q" else given.engine
        info = getattr(given.engine, "info", None)
        precision = given.bundle.find_quantized() if letter == "Q" else info.precision if info else None
        return given.open_engine(adapter, precision)

    def _run(self, ticket: Ticket, run: Prepared) -> None:
        outcome: Result | BaseException
        try:
            with self._dispatcher.serve(ticket):
                outcome = run.run()
        except BaseException as error:
            outcome = error
        self._end(ticket, outcome)

    def _end(self, ticket: Ticket, outcome: Result | BaseException) -> None:
        self._desk.end(ticket, ticket.report(outcome) if isinstance(outcome, Result) else outcome)

    def _drop(self, ticket: Ticket, future: "Future[Result]") -> None:
        """The request is over; if it was cancelled, its rows go."""
        if future.cancelled():
            self._desk.drop(ticket)

    def _choose_aim(self, ticket: Ticket) -> Aim:
        """The best plan that ends in time, at the speed of the last calls.

        Requests that wait for their begin are to have as much time: with as many of them as may run at a time, a plan
        may take half of the time that is left.
        """
        counters = self.counters
        rounds = 1 + counters.queued / self._desk.max_active
        left = ticket.due - time.monotonic()
        seconds = self._dispatcher.measure_call()
        load = f" with {counters.queued} waiting" if counters.queued else ""
        return Aim(fits=lambda offer: offer.cost * seconds * rounds <= left, load=load)
