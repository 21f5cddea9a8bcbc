"""The model of ``serving_simulation.py`` beside real batchers.

    python benchmarks/serving_check.py [--rounds 3] [--engine onnxruntime]

Two engines: one that sleeps, and the digits in ONNX Runtime. Two runs of each: a closed set of 32 requests, and 80
requests that arrive at random, at half of the rate of the set. Both of the batcher and with nothing skipped.

The model has the same arrivals, and takes two figures from the run that it is compared with. A call takes as long as
the call of as many rows that ran nearest in time: ONNX Runtime's time does not grow evenly with the rows, and the speed
of a machine changes with what else runs there. And Python takes as long per row as it did between two calls while a
request ran. The model adds which rows meet, and who waits for how long. A ratio is of model over real in one round. The
last line is one JSON object.
"""

import itertools
import json
import math
import tempfile
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from serving_simulation import MIXES, STEPS, Case, Request, Simulation, draw

from serving import MODEL, SimulatedEngine
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.serving import Batcher
from zeus_trt.zeus_graph import Plan

MIX = "r = 0, 2, 3, 4"
RATIOS = {Plan.uniform(STEPS, ratio).nfe: ratio for ratio in MIXES[MIX]}
SET, ARRIVALS = 32, 80
Cost = Callable[[int, float], float]


class TimedEngine:
    """An engine whose calls are remembered: rows, begin, seconds."""

    def __init__(self, engine: Denoiser):
        self._engine, self.backend = engine, engine.backend
        self.calls: list[tuple[int, float, float]] = []

    def __call__(self, **inputs):
        begin = time.monotonic()
        output = self._engine(**inputs)
        self.calls.append((len(inputs["sample"]), begin, time.monotonic() - begin))
        return output

    def read_cost(self, begin: float, seconds_per_row: float) -> Cost:
        """Seconds of a call of some rows at a time since ``begin``."""
        by_rows = defaultdict(list)
        for rows, at, seconds in self.calls:
            by_rows[rows].append((at - begin, seconds))

        def cost(rows: int, now: float) -> float:
            known = min(by_rows, key=lambda one: abs(one - rows))
            calls = by_rows[known]
            place = bisect(calls, (now,))
            _, seconds = min(calls[max(place - 1, 0) : place + 1], key=lambda one: abs(one[0] - now))
            return seconds * rows / known + seconds_per_row * rows

        return cost

    def measure_python(self, begin: float, requests: list[Request]) -> float:
        """Seconds per row between a call and the next one, where a request ran all the while."""
        spans = [(begin + one.arrived, begin + one.done) for one in requests]
        seconds = count = 0
        for (rows, start, took), (_, following, _) in itertools.pairwise(self.calls):
            if any(first <= start and following <= last for first, last in spans):
                seconds, count = seconds + following - start - took, count + rows
        return seconds / count


def serve(
    session: Session, requests: list[Request], max_rows: int, max_wait: float = Case.max_wait, **settings: Any
) -> float:
    """Runs requests as they arrive, and sets when each was done; returns when they began."""
    with Batcher(session, max_rows=max_rows, max_wait=max_wait, max_queue=len(requests)) as batcher:
        begin, futures = time.monotonic(), []
        for number, one in enumerate(requests):
            time.sleep(max(0.0, begin + one.arrived - time.monotonic()))
            labels, ratio = torch.tensor([number % 10]), RATIOS[one.num_calls]
            future = batcher.submit({"class_labels": labels}, num_steps=STEPS, ratio=ratio, seed=number, **settings)
            future.add_done_callback(lambda done, one=one: setattr(one, "done", time.monotonic() - begin))
            futures.append(future)
        for future in futures:
            future.result()
    return begin


def summarize(requests: list[Request]) -> dict[str, float]:
    """Median and p90 of the requests' times, and when the last one was done."""
    took = sorted(one.done - one.arrived for one in requests)
    end = max(one.done for one in requests)
    return {"p50": took[len(took) // 2], "p90": took[int(len(took) * 0.9)], "end": end}


def compare(session: Session, way: str, rate: float, count: int, max_rows: int) -> dict:
    """One run and the model of it."""
    engine = session.engine
    engine.calls.clear()
    real, modelled = (draw(MIX, rate, count, way) for _ in range(2))
    begin = serve(session, real, max_rows)
    here = summarize(real)
    python = engine.measure_python(begin, real)
    Simulation(way, Case(max_rows=max_rows), engine.read_cost(begin, python)).run(modelled)
    model = summarize(modelled)
    ratios = {name: model[name] / here[name] for name in here}
    return {"here": here, "model": model, "model_over_real": ratios, "python_per_row": python}


def check(session: Session, rounds: int, max_rows: int) -> dict:
    """All runs of one engine."""
    compare(session, "batcher", math.inf, SET, max_rows)  # traces the solver
    made = defaultdict(list)
    for _ in range(rounds):
        closed = compare(session, "batcher", math.inf, SET, max_rows)
        made["set"].append(closed)
        rate = SET / closed["here"]["end"] / 2
        for way in ("full", "batcher"):
            made[f"arrivals, {way}"].append(compare(session, way, rate, ARRIVALS, max_rows) | {"rate": rate})
    return {"engine": session.backend, "runs": made}


def describe(name: str, rounds: list[dict]) -> str:
    """A line of a run."""
    parts = []
    for figure in ("end",) if name == "set" else ("p50", "p90"):
        here, model = (median(one[side][figure] for one in rounds) for side in ("here", "model"))
        ratios = [one["model_over_real"][figure] for one in rounds]
        parts.append(
            f"{figure} {here:.2f} s here, {model:.2f} s in the model, {median(ratios):.2f}x "
            f"({min(ratios):.2f}-{max(ratios):.2f})"
        )
    return f"  {name}: " + "; ".join(parts)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--max-rows", default=8, show_default=True)
@click.option("--engine", type=click.Choice(["onnxruntime", "simulation"]), default=None, help="Both by default.")
def main(rounds: int, max_rows: int, engine: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(export_model(MODEL, Path(folder) / "digits").path)
        engines = {"simulation": SimulatedEngine, "onnxruntime": lambda: OnnxRuntimeEngine(bundle.graph())}
        rows = []
        for name in [engine] if engine else engines:
            rows.append(check(Session(bundle, engine=TimedEngine(engines[name]())), rounds, max_rows))
            click.echo("\n".join((name, *(describe(*run) for run in rows[-1]["runs"].items()))))
    settings = {"rounds": rounds, "max_rows": max_rows, "machine": describe_machine()}
    click.echo(json.dumps({"benchmark": "serving_check", **settings, "engines": rows}))


if __name__ == "__main__":
    main()
