"""What ``max_wait`` does to requests in threads, such as pipelines: how long they take, and how full calls are.

    python benchmarks/serving_wait.py [--rounds 3]

80 requests (r = 0, 2, 3, 4 at 50 steps) arrive at random at a batcher whose engine sleeps 10 ms + 1 ms x rows. Each has
a thread, since each has an ``on_step``. Requests in the batcher's own thread do not depend on ``max_wait``: it has
their next calls before it takes a batch. All settings run in turn. The last line is one JSON object.
"""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import click
from serving_check import ARRIVALS, MIX, TimedEngine, serve, summarize
from serving_simulation import draw

from serving import MODEL, SimulatedEngine
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, Session

WAITS = (0.0, 0.002, 0.005, 0.02)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--max-rows", default=8, show_default=True)
@click.option("--rates", default="3,6", show_default=True, help="Requests per second.")
def main(rounds: int, max_rows: int, rates: str) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(export_model(MODEL, Path(folder) / "digits").path)
        for rate in map(float, rates.split(",")):
            made = defaultdict(list)
            for _ in range(rounds):
                for wait in WAITS:
                    requests = draw(MIX, rate, ARRIVALS, "batcher")
                    engine = TimedEngine(SimulatedEngine())
                    serve(Session(bundle, engine=engine), requests, max_rows, wait, on_step=lambda step: None)
                    mean = sum(count for count, *_ in engine.calls) / len(engine.calls)
                    made[wait].append(summarize(requests) | {"rows": mean})
            for wait, runs in made.items():
                figures = {name: [one[name] for one in runs] for name in ("p50", "p90", "rows")}
                row = {name: [round(f(values), 3) for f in (min, median, max)] for name, values in figures.items()}
                rows.append({"rate": rate, "max_wait": wait, **row})
                told = "; ".join(f"{name} {b} ({a}-{c})" for name, (a, b, c) in row.items())
                click.echo(f"{rate:g} /s, max_wait {wait * 1000:g} ms: {told}")
    settings = {"rounds": rounds, "max_rows": max_rows, "machine": describe_machine()}
    click.echo(json.dumps({"benchmark": "serving_wait", **settings, "rows": rows}))


if __name__ == "__main__":
    main()
