"""Calibration over the number of recorded trajectories: with probes, and with the prior in their place.

    python benchmarks/trajectories.py --cache DIR

The digits models are exported; N = 50, guidance 2, the checkpoints' own solvers. Which of the local optima wins is a
matter of luck, so every cell is calibrated on several sets of 16 recorded samples: the first so many of a set are
searched, with their probes, or without probes and from a prior that leaves the model out. 16 samples choose among the
candidates, as in a calibration, and 64 held-out ones measure the winner. Finished cells stay in the cache, which may be
that of `benchmarks/prior.py`, and the results are written after every row. The last line is one JSON object.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import click
import torch
from prior import MODELS, Campaign

from zeus_trt.calibration.calibrate import CANDIDATES, screen
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import search
from zeus_trt.calibration.shrinkage import shrink
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.machine import describe_machine
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.prior import load_kernels

STEPS, BUDGETS = 50, (22, 15)
VALIDATION, HELD_OUT = range(16, 32), range(32, 96)
RECORDED, SET = 96, 16  # the first recorded sample, and the samples of a set
KINDS = ((16, True), (4, False), (4, True), (1, False))
"""Trajectories, and whether their probes are recorded; without them the prior is used."""


class Model:
    """Measures a model's plans, as a bench does."""

    def __init__(self, name: str, campaign: Campaign):
        self.name, self._campaign = name, campaign
        self.workload = campaign.open(name)
        self.program = self.workload.program(STEPS)
        self.kernels = tuple(kernel for kernel in load_kernels() if kernel.name != name)
        self.record = cache(self._record)

    def _record(self, number: int) -> TrajectoryStats:
        path = self._campaign.folder / f"gram-{self.name}-{STEPS}.npz"
        numbers = range(RECORDED + SET * number, RECORDED + SET * (number + 1))
        return record(self.workload, make_full_setting(self.workload, STEPS), numbers, path=path)

    def measure(self, plan: Plan, numbers: Sequence[int]) -> float:
        return self._campaign.measure(self.name, "default", STEPS, plan, numbers)

    def run(self, nfe: int, count: int, probes: bool, number: int) -> dict:
        """A row of the table, of one set of recorded samples."""
        stats = self.record(number)
        stats = stats.select(stats.numbers[:count])
        if not probes:
            stats = replace(stats, responses=stats.responses[:, :0], calls=STEPS * count)
        stats = shrink(self.program, stats, nfe, self.kernels)
        winner = screen(self, search(self.program, stats, nfe)[:CANDIDATES], VALIDATION)[0]
        return {
            "model": self.name, "nfe": nfe, "trajectories": count, "probes": probes, "set": number,
            "recording_calls": stats.calls, "psnr_db": round(self.measure(winner, HELD_OUT), 2), "plan": str(winner),
        }  # fmt: skip


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished cells.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--kinds", default=3, show_default=True, help=f"Only the first so many of {KINDS}.")
@click.option("--sets", default=4, show_default=True, help="Sets of recorded samples.")
@click.option("--threads", default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(folder: Path, models: tuple[str, ...], kinds: int, sets: int, threads: int, output: Path | None) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    opened, rows = [Model(name, Campaign(folder, threads, len(HELD_OUT))) for name in models], []
    head = {"benchmark": "trajectories", "num_steps": STEPS, "guidance_scale": 2.0, "held_out": len(HELD_OUT)}
    result = {**head, "machine": describe_machine(), "rows": rows}
    for model, nfe, number, kind in product(opened, BUDGETS, range(sets), KINDS[:kinds]):
        rows.append(model.run(nfe, *kind, number))
        click.echo(json.dumps(rows[-1]), err=True)
        if output:
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
