"""What the batcher costs in Python, per row and call, with an engine that costs nothing.

    python benchmarks/serving_overhead.py [--requests 64] [--rounds 7]

The same requests of 50 steps run one after the other (``Session.generate``) and in a batcher, in turn. What a serial
run takes is the trajectory's own: solver, checks, report. The rest is the batcher's: threads, queue, gathering,
scattering. CPU time is that of all threads of the process; on a busy machine wall time is longer. Each figure is a
median over the rounds, with its range. The last line is one JSON object.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import click
import torch

from serving import MODEL
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, Session
from zeus_trt.serving import Batcher

STEPS = 50
RATIOS = {"r = 0": (0,), "r = 2, 3, 4": (2, 3, 4)}
MAX_ROWS = 8


class FreeEngine:
    """No network: the output is a copy of the input."""

    backend = "free"

    def __call__(self, sample, timestep, class_labels):
        return sample.clone()


def ask(ratios: tuple[int, ...], count: int) -> list[dict]:
    """Requests with different settings."""
    return [
        {"conditioning": {"class_labels": torch.tensor([k % 10])}, "ratio": ratios[k % len(ratios)], "seed": k}
        for k in range(count)
    ]


def run_serial(session: Session, asked: list[dict]) -> int:
    """One after the other; returns the number of calls."""
    return sum(session.generate(num_steps=STEPS, **one).report.nfe for one in asked)


def run_batcher(session: Session, asked: list[dict]) -> int:
    """All at once; returns the number of rows."""
    with Batcher(session, max_rows=MAX_ROWS, max_queue=len(asked)) as batcher:
        futures = [batcher.submit(num_steps=STEPS, **one) for one in asked]
        return sum(future.result().report.nfe for future in futures)


def measure(run: Callable[[Session, list[dict]], int], session: Session, asked: list[dict]) -> tuple[float, float]:
    """Microseconds of wall and CPU time per row and call."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows = run(session, asked)
    return (time.perf_counter() - wall) / rows * 1e6, (time.process_time() - cpu) / rows * 1e6


def compare(session: Session, ratios: tuple[int, ...], count: int, rounds: int) -> dict[str, list[float]]:
    """Least, median and most, in microseconds per row and call."""
    asked = ask(ratios, count)
    run_batcher(session, asked)  # traces the solver
    rounded = {"serial_wall": [], "serial_cpu": [], "batcher_wall": [], "batcher_cpu": [], "batcher_own_cpu": []}
    for _ in range(rounds):
        serial, batcher = measure(run_serial, session, asked), measure(run_batcher, session, asked)
        for values, value in zip(rounded.values(), (*serial, *batcher, batcher[1] - serial[1]), strict=True):
            values.append(value)
    return {name: [round(f(values), 1) for f in (min, median, max)] for name, values in rounded.items()}


@click.command()
@click.option("--requests", "count", default=64, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(count: int, rounds: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Bundle.open(export_model(MODEL, Path(folder) / "digits").path), engine=FreeEngine())
        rows = {mix: compare(session, ratios, count, rounds) for mix, ratios in RATIOS.items()}
    for mix, row in rows.items():
        click.echo(f"{mix}, us per row and call: " + "; ".join(f"{k} {b} ({a}-{c})" for k, (a, b, c) in row.items()))
    settings = {"requests": count, "rounds": rounds, "max_rows": MAX_ROWS, "machine": describe_machine()}
    click.echo(json.dumps({"benchmark": "serving_overhead", **settings, "microseconds": rows}))


if __name__ == "__main__":
    main()
