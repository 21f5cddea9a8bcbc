"""Throughput of the batcher beside the same requests one after the other, and in static batches.

    python benchmarks/serving.py [--requests 24] [--rounds 3] [--max-rows 8]

Two engines: the digits in ONNX Runtime, and a *simulation*: an engine that sleeps a + b x rows and answers at once. Two
mixes: half of the requests at r = 0 and half at r = 4, all of 50 steps; and requests that differ in steps and ratio.

- ``serial``: one request after the other, ``Session.generate``.
- ``static_batches``: batches of up to ``max_rows`` requests of equal steps and ratio, as far as there are such.
- ``batcher_full``: the batcher, nothing skipped.
- ``batcher``: all are submitted at once.

Each round runs the four in turn; a ratio is of times within one round. The last line is one JSON object.
"""

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import click
import torch

from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session
from zeus_trt.serving import Batcher
from zeus_trt.zeus_graph import Plan

MODEL = Path(__file__).parents[1] / "examples" / "models" / "digits-unet-flow"
A, B = 0.010, 0.001  # seconds of a simulated call, and of each of its rows
MIXES = {
    "r = 0 and r = 4": lambda k: {"num_steps": 50, "ratio": 4 * (k % 2)},
    "mixed": lambda k: {"num_steps": 44 + 2 * (k % 7), "ratio": (0, 2, 3, 4)[k % 4]},
}


class SimulatedEngine:
    """No network: it sleeps as long as a call is said to take, and bends its input."""

    backend = "simulation"

    def __call__(self, sample, timestep, class_labels):
        time.sleep(A + B * len(sample))
        return torch.tanh(sample)


def run_static(session: Session, asked: list[dict], max_rows: int) -> None:
    """Batches of requests that agree in steps and ratio."""
    groups = defaultdict(list)
    for number, one in enumerate(asked):
        groups[tuple(one.items())].append(number)
    for settings, numbers in groups.items():
        for begin in range(0, len(numbers), max_rows):
            seeds = numbers[begin : begin + max_rows]
            labels = torch.tensor([number % 10 for number in seeds])
            session.generate({"class_labels": labels}, seed=seeds, **dict(settings))


def run_batcher(session: Session, asked: list[dict], max_rows: int) -> dict:
    """All at once; returns what the calls were like."""
    with Batcher(session, max_rows=max_rows, max_queue=len(asked)) as batcher:
        futures = [
            batcher.submit({"class_labels": torch.tensor([number % 10])}, seed=number, **one)
            for number, one in enumerate(asked)
        ]
        for future in futures:
            future.result()
    counters = batcher.counters
    best = -(-counters.rows // max_rows)
    return {"calls": counters.calls, "rows": counters.rows, "calls_over_best": round(counters.calls / best, 3)}


def run_serial(session: Session, asked: list[dict]) -> None:
    """One after the other."""
    for number, one in enumerate(asked):
        session.generate({"class_labels": torch.tensor([number % 10])}, seed=number, **one)


def bench(session: Session, mix: str, num_requests: int, rounds: int, max_rows: int) -> dict:
    """One row: requests per second of each way, and how the batcher compares with the others."""
    asked = [MIXES[mix](k) for k in range(num_requests)]
    seconds: dict[str, list[float]] = defaultdict(list)
    batches = []
    ways = {
        "serial": lambda: run_serial(session, asked),
        "static_batches": lambda: run_static(session, asked, max_rows),
        "batcher_full": lambda: run_batcher(session, [{**one, "ratio": 0} for one in asked], max_rows),
        "batcher": lambda: batches.append(run_batcher(session, asked, max_rows)),
    }
    run_batcher(session, asked, max_rows)  # traces the solvers
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    plans = [Plan.uniform(one["num_steps"], one["ratio"]) for one in asked]
    ratios = {
        name: [slow / fast for slow, fast in zip(times, seconds["batcher"], strict=True)]
        for name, times in seconds.items()
        if name != "batcher"
    }
    return {
        "engine": session.backend,
        "mix": mix,
        "requests_per_second": {name: round(num_requests / median(times), 3) for name, times in seconds.items()},
        "batcher_over": {name: [round(f(values), 3) for f in (min, median, max)] for name, values in ratios.items()},
        "bound_over_full": round(sum(map(len, plans)) / sum(plan.nfe for plan in plans), 3),
        **batches[-1],
    }


@click.command()
@click.option("--requests", "num_requests", default=24, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--max-rows", default=8, show_default=True)
@click.option("--engine", type=click.Choice(["onnxruntime", "simulation"]), default=None, help="Both by default.")
def main(num_requests: int, rounds: int, max_rows: int, engine: str | None) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(export_model(MODEL, Path(folder) / "digits").path)
        engines = {"simulation": SimulatedEngine, "onnxruntime": lambda: OnnxRuntimeEngine(bundle.graph())}
        for name in [engine] if engine else engines:
            for mix in MIXES:
                row = bench(Session(bundle, engine=engines[name]()), mix, num_requests, rounds, max_rows)
                rows.append(row)
                least, middle, most = row["batcher_over"]["batcher_full"]
                click.echo(
                    f"{name:<12} {mix:<16} {row['requests_per_second']['batcher']:>7.2f} requests/s; "
                    f"batcher / nothing skipped {middle}x ({least}-{most}), bound {row['bound_over_full']}x; "
                    f"calls {row['calls_over_best']} x the least"
                )
    settings = {"requests": num_requests, "rounds": rounds, "max_rows": max_rows, "simulated_call": {"a": A, "b": B}}
    click.echo(json.dumps({"benchmark": "serving", **settings, "machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
