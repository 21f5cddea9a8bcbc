"""Serving in virtual time: the batcher's own queue of calls, engines that take a + b x rows seconds, no thread.

    python benchmarks/serving_simulation.py [--a 0.010] [--b 0.001] [--gpus 1] [--rate 4]

It is a *model*: requests go to the engine with the fewest calls left, Python takes no time but what ``a`` and ``b``
have, and there is one shape. ``zeus_trt.serving.call_queue.CallQueue`` decides what goes into a call, and when, as in
the batcher. Requests arrive at random (Poisson), or all at once. Rates and times are of the middle of the run: the
first and the last fifth of the requests are dropped.

``--requests 32`` is a closed set; with ``--clients 32`` it is a closed loop: each client sends its next request when
its last one is done. ``calls_over_rows`` is the number of calls over the least for so many rows; no order can be below
``longest_over_rows``, the longest request alone.

- ``serial``: one request at a time on each engine.
- ``equal plans``: batches of waiting requests of equal plan and steps, oldest first; each runs to its end.
- ``full``: the batcher, nothing skipped.
- ``oldest first``: the batcher, but a call that is critical (``CallQueue``) does not go before older ones.
- ``batcher``: the batcher.

The last line is one JSON object.
"""

import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from zeus_trt.serving.call_queue import CallQueue
from zeus_trt.serving.waiting_call import Caller, Part, WaitingCall
from zeus_trt.zeus_graph import Plan

MIXES = {"r = 0, 2, 3, 4": (0, 2, 3, 4), "r = 2, 3, 4": (2, 3, 4), "r = 0, 4": (0, 4), "r = 3": (3,)}
WAYS = ("serial", "equal plans", "full", "oldest first", "batcher")
STEPS = 50
KEY = ("F",)


@dataclass(frozen=True)
class Case:
    """What is simulated: engines, and how requests arrive.

    Args:
        a, b: Seconds of a call of the engine, and of each of its rows.
        gpus: Number of engines.
        rate: Requests per second.
        clients: How many send their next request when their last one is done; None for arrivals at ``rate``.
        requests: How many in all.
        max_rows, max_wait: As in ``Batcher``.
        think: Seconds of Python between an answer and the next call, one request after the other: 0 for requests in the
            batcher's thread, whose calls it has before it takes the next batch.
    """

    a: float = 0.010
    b: float = 0.001
    gpus: int = 1
    rate: float = math.inf
    clients: int | None = None
    requests: int = 1000
    max_rows: int = 8
    max_wait: float = 0.005
    think: float = 0.0


@dataclass(eq=False)
class Request(Caller):
    """A request: when it arrives, how many calls it makes, and when it is done."""

    arrived: float
    num_calls: int
    is_dated: bool = False
    done: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.calls_left = self.num_calls

    @property
    def has_deadline(self) -> bool:
        return self.is_dated


@dataclass
class Engine:
    """One engine with a queue of requests and of calls."""

    max_active: int
    queue: CallQueue
    waiting: deque[Request] = field(default_factory=deque)
    active: int = 0
    is_busy: bool = False
    load: int = 0
    thought: float = 0.0
    calls: int = 0
    rows: int = 0


class Simulation:
    """Requests on engines, in virtual time."""

    def __init__(self, way: str, case: Case, cost: Callable[[int, float], float] | None = None):
        self.way, self.max_rows, self.think = way, case.max_rows, case.think
        self.cost = cost or (lambda rows, now: case.a + case.b * rows)
        most = {"serial": 1, "equal plans": case.max_rows}.get(way, 2 * case.max_rows)
        self.engines = [Engine(most, CallQueue(case.max_wait)) for _ in range(case.gpus)]
        self.following: deque[Request] = deque()
        self.events: list = []
        self.numbers = itertools.count()

    def run(self, requests: list[Request], clients: int | None = None) -> None:
        """Runs all to their ends; clients send the next one when their last one is done, else all arrive in time."""
        self.following = deque(requests[clients:] if clients else ())
        for request in requests[:clients]:
            self._push(request.arrived, self._arrive, request)
        while self.events:
            now, _, act, *rest = heapq.heappop(self.events)
            act(now, *rest)

    def _push(self, at: float, *event) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), *event))

    def _arrive(self, now: float, request: Request) -> None:
        engine = min(self.engines, key=lambda one: one.load)
        engine.load += request.calls_left
        engine.waiting.append(request)
        self._begin(now, engine)
        self._dispatch(now, engine)

    def _begin(self, now: float, engine: Engine) -> None:
        if self.way == "equal plans":
            if engine.active or not engine.waiting:
                return
            calls = engine.waiting[0].calls_left
            chosen = [one for one in engine.waiting if one.calls_left == calls][: self.max_rows]
            engine.waiting = deque(one for one in engine.waiting if one not in chosen)
        else:
            chosen = [
                engine.waiting.popleft() for _ in range(min(engine.max_active - engine.active, len(engine.waiting)))
            ]
        engine.active += len(chosen)
        for request in chosen:
            self._call(now, engine, request)

    def _come(self, now: float, engine: Engine, request: Request) -> None:
        self._call(now, engine, request)
        self._dispatch(now, engine)

    def _call(self, now: float, engine: Engine, request: Request) -> None:
        call = WaitingCall(request, KEY, {"x": range(1)}, ("x",), now, request.arrived, lambda call: None)
        engine.queue.put(call, self.max_rows)

    def _dispatch(self, now: float, engine: Engine) -> None:
        if engine.is_busy:
            return
        if parts := engine.queue.take(now):
            engine.is_busy = True
            engine.calls, engine.rows = engine.calls + 1, engine.rows + len(parts)
            self._push(now + self.cost(len(parts), now), self._answer, engine, parts)
        elif (change := engine.queue.next_change()) is not None and change > now:
            self._push(change, self._dispatch, engine)

    def _answer(self, now: float, engine: Engine, parts: list[Part]) -> None:
        engine.is_busy = False
        engine.queue.free(now)
        for part in parts:
            request = part.call.caller
            request.calls_left, engine.load = request.calls_left - 1, engine.load - 1
            if request.calls_left and self.think:
                engine.queue.expect(request, KEY, now)
                engine.thought = max(engine.thought, now) + self.think
                self._push(engine.thought, self._come, engine, request)
            elif request.calls_left:
                self._call(now, engine, request)
            else:
                request.done, engine.active = now, engine.active - 1
                if self.following:
                    self.following[0].arrived = now
                    self._push(now, self._arrive, self.following.popleft())
        self._begin(now, engine)
        self._dispatch(now, engine)


def draw(mix: str, rate: float, count: int, way: str, seed: int = 0) -> list[Request]:
    """Poisson arrivals; with an infinite rate all are there at once."""
    dice, now, made = random.Random(seed), 0.0, []
    for _ in range(count):
        now += dice.expovariate(rate) if rate < math.inf else 1e-6
        ratio = dice.choice(MIXES[mix])
        made.append(Request(now, Plan.uniform(STEPS, 0 if way == "full" else ratio).nfe, way == "oldest first"))
    return made


def measure(case: Case, way: str, mix: str) -> dict:
    """Throughput, latencies and calls of a run."""
    requests = draw(mix, case.rate, case.requests, way)
    simulation = Simulation(way, case)
    simulation.run(requests, case.clients)
    ends = sorted(one.done for one in requests)
    fifth = case.requests // 5
    took = sorted(one.done - one.arrived for one in requests[fifth : case.requests - fifth])
    calls, rows = (sum(getattr(one, name) for one in simulation.engines) for name in ("calls", "rows"))
    longest = max(one.num_calls for one in requests)
    return {
        "way": way,
        "requests_per_second": (len(ends) - 2 * fifth) / (ends[-fifth - 1] - ends[fifth - 1]),
        "p50": took[len(took) // 2],
        "p99": took[int(len(took) * 0.99)],
        "fill": rows / calls / case.max_rows,
        "calls_over_rows": calls / -(-rows // case.max_rows),
        "longest_over_rows": longest / -(-rows // case.max_rows),
    }


@click.command()
@click.option("--a", default=0.010, show_default=True, help="Seconds of a call.")
@click.option("--b", default=0.001, show_default=True, help="Seconds of each of its rows.")
@click.option("--gpus", default=1, show_default=True)
@click.option("--rate", default=float("inf"), show_default=True, help="Requests per second; all at once by default.")
@click.option("--clients", default=None, type=int, help="Each sends its next request when its last is done.")
@click.option("--requests", default=1000, show_default=True)
@click.option("--max-rows", default=8, show_default=True)
@click.option("--max-wait", default=0.005, show_default=True)
@click.option("--think", default=0.0, show_default=True, help="Seconds of Python between two calls of a request.")
def main(**settings: Any) -> None:
    case, rows = Case(**settings), []
    for mix, ratios in MIXES.items():
        made = {way: measure(case, way, mix) for way in WAYS}
        bound = STEPS * len(ratios) / sum(Plan.uniform(STEPS, ratio).nfe for ratio in ratios)
        gain = made["batcher"]["requests_per_second"] / made["full"]["requests_per_second"]
        rows.append({"mix": mix, "bound": round(bound, 3), "gain": round(gain, 3), "ways": [*made.values()]})
        click.echo(f"{mix}: {gain:.2f}x of nothing skipped, bound {bound:.2f}x")
        for one in made.values():
            click.echo(
                f"  {one['way']:<12} {one['requests_per_second']:>8.2f} requests/s, p50 {one['p50']:.2f} s, "
                f"p99 {one['p99']:.2f} s, fill {one['fill']:.2f}, calls {one['calls_over_rows']:.3f} x rows / capacity"
            )
    described = {**settings, "rate": str(case.rate)}
    click.echo(json.dumps({"benchmark": "serving_simulation", **described, "rows": rows}))


if __name__ == "__main__":
    main()
