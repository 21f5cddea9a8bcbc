"""Serving in virtual time: the batcher's own queue of calls, engines that take a + b x rows seconds, no thread.

    python benchmarks/serving_simulation.py [--a 0.010] [--b 0.001] [--gpus 1] [--rate 4]

It is a *model*: requests go to the engine with the fewest calls left, Python takes no time but what ``a`` and ``b``
have, and there is one shape. ``zeus_trt.serving.call_queue.CallQueue`` decides what goes into a call, and when, as in
the batcher. Requests arrive at random (Poisson), or all at once. Rates and times are of the middle of the run: the
first and the last fifth of the requests are dropped.

With ``--check`` it measures a and b here, from batchers with one and with ``max_rows`` requests at r = 0, and compares
its time of 32 mixed requests with that of a batcher, and its times of requests that arrive at random, at half of the
rate that the batcher reached with these.

- ``serial``: one request at a time on each engine.
- ``equal plans``: batches of waiting requests of equal plan and steps, oldest first; each runs to its end.
- ``full``: the batcher, nothing skipped.
- ``batcher``: the batcher.

The last line is one JSON object.
"""

import heapq
import itertools
import json
import random
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
import torch

from serving import MODEL, SimulatedEngine, run_batcher
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session
from zeus_trt.serving import Batcher
from zeus_trt.serving.call_queue import CallQueue
from zeus_trt.serving.waiting_call import Caller, Part, WaitingCall
from zeus_trt.zeus_graph import Plan

MIXES = {"r = 0, 2, 3, 4": (0, 2, 3, 4), "r = 2, 3, 4": (2, 3, 4), "r = 0, 4": (0, 4), "r = 3": (3,)}
WAYS = ("serial", "equal plans", "full", "batcher")
STEPS = 50
OPEN_MIX, OPEN_COUNT = "r = 0, 2, 3, 4", 80  # of the arrivals of --check


@dataclass(eq=False)
class Request(Caller):
    """A request: when it arrives, how many calls it makes, and when it is done."""

    arrived: float
    calls_left: int
    done: float = field(default=0.0, init=False)


@dataclass
class Engine:
    """One engine with a queue of requests and of calls."""

    max_active: int
    queue: CallQueue
    waiting: deque[Request] = field(default_factory=deque)
    active: int = 0
    is_busy: bool = False
    load: int = 0
    rows: int = 0
    slots: int = 0


class Simulation:
    """Requests on engines, in virtual time."""

    def __init__(self, way: str, a: float, b: float, gpus: int, max_rows: int, max_wait: float):
        self.way, self.a, self.b, self.max_rows = way, a, b, max_rows
        most = {"serial": 1, "equal plans": max_rows}.get(way, 2 * max_rows)
        self.engines = [Engine(most, CallQueue(max_wait)) for _ in range(gpus)]
        self.events: list = []
        self.numbers = itertools.count()

    def run(self, requests: list[Request]) -> None:
        """Runs all to their ends."""
        for request in requests:
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

    def _call(self, now: float, engine: Engine, request: Request) -> None:
        call = WaitingCall(request, ("F",), {"x": range(1)}, ("x",), now, request.arrived, lambda call: None)
        engine.queue.put(call, self.max_rows)

    def _dispatch(self, now: float, engine: Engine) -> None:
        if engine.is_busy:
            return
        if parts := engine.queue.take(now):
            engine.is_busy = True
            engine.rows, engine.slots = engine.rows + len(parts), engine.slots + self.max_rows
            self._push(now + self.a + self.b * len(parts), self._answer, engine, parts)
        elif (change := engine.queue.next_change()) is not None and change > now:
            self._push(change, self._dispatch, engine)

    def _answer(self, now: float, engine: Engine, parts: list[Part]) -> None:
        engine.is_busy = False
        for part in parts:
            request = part.call.caller
            request.calls_left, engine.load = request.calls_left - 1, engine.load - 1
            if request.calls_left:
                self._call(now, engine, request)
            else:
                request.done, engine.active = now, engine.active - 1
        self._begin(now, engine)
        self._dispatch(now, engine)


def draw(mix: str, rate: float, count: int, is_full: bool = False, seed: int = 0) -> list[Request]:
    """Poisson arrivals; with an infinite rate all are there at once."""
    dice, now, made = random.Random(seed), 0.0, []
    for _ in range(count):
        now += dice.expovariate(rate) if rate < float("inf") else 0.0
        ratio = dice.choice(MIXES[mix])
        made.append(Request(now, Plan.uniform(STEPS, 0 if is_full else ratio).nfe))
    return made


def measure(
    way: str, mix: str, rate: float, count: int, a: float, b: float, gpus: int, max_rows: int, wait: float
) -> dict:
    """Throughput, latencies and batch fill of the middle of a run."""
    requests = draw(mix, rate, count, is_full=way == "full")
    simulation = Simulation(way, a, b, gpus, max_rows, wait)
    simulation.run(requests)
    ends = sorted(one.done for one in requests)
    fifth = count // 5
    took = sorted(one.done - one.arrived for one in requests[fifth:-fifth])
    return {
        "way": way,
        "requests_per_second": (len(ends) - 2 * fifth) / (ends[-fifth - 1] - ends[fifth - 1]),
        "p50": took[len(took) // 2],
        "p99": took[int(len(took) * 0.99)],
        "fill": sum(one.rows for one in simulation.engines) / sum(one.slots for one in simulation.engines),
    }


def serve_arrivals(session: Session, requests: list[Request], max_rows: int, is_full: bool) -> dict:
    """Requests that arrive at random at a batcher, which runs here: how long they took."""
    ratios = {Plan.uniform(STEPS, ratio).nfe: ratio for ratio in MIXES[OPEN_MIX]}
    with Batcher(session, max_rows=max_rows, max_queue=len(requests)) as batcher:
        begin, futures = time.monotonic(), []
        for number, one in enumerate(requests):
            time.sleep(max(0.0, begin + one.arrived - time.monotonic()))
            future = batcher.submit(
                {"class_labels": torch.tensor([number % 10])},
                num_steps=STEPS,
                ratio=0 if is_full else ratios[one.calls_left],
                seed=number,
            )
            future.add_done_callback(lambda done, one=one: setattr(one, "done", time.monotonic() - begin))
            futures.append(future)
        for future in futures:
            future.result()
    return summarize([one.done - one.arrived for one in requests])


def summarize(seconds: list[float]) -> dict:
    """Median and p90 of a few requests."""
    took = sorted(seconds)
    return {"p50": round(took[len(took) // 2], 3), "p90": round(took[int(len(took) * 0.9)], 3)}


def check(session: Session, max_rows: int) -> dict:
    """How long 32 requests take in a batcher and in the model, whose a and b are those of other runs here."""

    def serve(ratios: list[int]) -> float:
        asked = [{"num_steps": STEPS, "ratio": ratio} for ratio in ratios]
        begin = time.perf_counter()
        run_batcher(session, asked, max_rows)
        return time.perf_counter() - begin

    mixed = [0, 2, 3, 4] * 8
    serve(mixed)  # traces the solver
    one, many = (median(serve([0] * count) / STEPS for _ in range(3)) for count in (1, max_rows))
    b = (many - one) / (max_rows - 1)
    simulation = Simulation("batcher", one - b, b, 1, max_rows, 0.02)
    requests = [Request(0.0, Plan.uniform(STEPS, ratio).nfe) for ratio in mixed]
    simulation.run(requests)
    model, real = max(request.done for request in requests), sorted(serve(mixed) for _ in range(5))
    rate = len(mixed) / real[2] / 2
    arrivals = {}
    for way in ("full", "batcher"):
        requests = draw(OPEN_MIX, rate, OPEN_COUNT, is_full=way == "full")
        modelled = Simulation(way, one - b, b, 1, max_rows, 0.02)
        modelled.run(requests)
        here = serve_arrivals(session, draw(OPEN_MIX, rate, OPEN_COUNT), max_rows, is_full=way == "full")
        arrivals[way] = {"model": summarize([request.done - request.arrived for request in requests]), "here": here}
    return {
        "arrivals_per_second": round(rate, 3), "arrivals": arrivals,
        "engine": session.backend, "a": one - b, "b": b, "model_seconds": model,
        "seconds": [real[0], real[2], real[-1]], "model_over_real": round(model / real[2], 3),
    }  # fmt: skip


def check_here(max_rows: int) -> list[dict]:
    """``check`` with an engine that sleeps, and with the digits in ONNX Runtime."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(export_model(MODEL, Path(folder) / "digits").path)
        engines = (SimulatedEngine(), OnnxRuntimeEngine(bundle.graph()))
        return [check(Session(bundle, engine=engine), max_rows) for engine in engines]


@click.command()
@click.option("--check", "is_check", is_flag=True, help="Compare with real batchers here.")
@click.option("--a", default=0.010, show_default=True, help="Seconds of a call.")
@click.option("--b", default=0.001, show_default=True, help="Seconds of each of its rows.")
@click.option("--gpus", default=1, show_default=True)
@click.option("--rate", default=float("inf"), show_default=True, help="Requests per second; all at once by default.")
@click.option("--requests", "count", default=1000, show_default=True)
@click.option("--max-rows", default=8, show_default=True)
@click.option("--max-wait", default=0.02, show_default=True)
def main(
    is_check: bool, a: float, b: float, gpus: int, rate: float, count: int, max_rows: int, max_wait: float
) -> None:
    if is_check:
        rows = check_here(max_rows)
        for row in rows:
            click.echo(f"{row['engine']}: model {row['model_seconds']:.2f} s, here {row['seconds'][1]:.2f} s")
        click.echo(json.dumps({"benchmark": "serving_simulation", "machine": describe_machine(), "check": rows}))
        return
    rows = []
    for mix, ratios in MIXES.items():
        made = {way: measure(way, mix, rate, count, a, b, gpus, max_rows, max_wait) for way in WAYS}
        bound = STEPS * len(ratios) / sum(Plan.uniform(STEPS, ratio).nfe for ratio in ratios)
        gain = made["batcher"]["requests_per_second"] / made["full"]["requests_per_second"]
        rows.append({"mix": mix, "bound": round(bound, 3), "gain": round(gain, 3), "ways": [*made.values()]})
        click.echo(f"{mix}: {gain:.2f}x of nothing skipped, bound {bound:.2f}x")
        for one in made.values():
            click.echo(
                f"  {one['way']:<12} {one['requests_per_second']:>8.2f} requests/s, p50 {one['p50']:.2f} s, "
                f"p99 {one['p99']:.2f} s, fill {one['fill']:.2f}"
            )
    settings = {
        "a": a,
        "b": b,
        "gpus": gpus,
        "rate": str(rate),
        "requests": count,
        "max_rows": max_rows,
        "max_wait": max_wait,
    }
    click.echo(json.dumps({"benchmark": "serving_simulation", **settings, "rows": rows}))


if __name__ == "__main__":
    main()
