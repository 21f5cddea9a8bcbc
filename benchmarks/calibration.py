"""Calibrated plans beside the best uniform ones, on the digits models.

    python benchmarks/calibration.py --cache DIR

Every model is exported, 16 trajectories are recorded with probes, and every NFE is calibrated without the prior; 64
held-out samples measure the winner and the best uniform plans of as many full steps (any window, any reading). Guidance
2, the checkpoints' own solvers. A finished cell is kept in the cache and is not run again. The last line is one JSON
object.
"""

import json
import time
from functools import cache
from pathlib import Path

import click
import numpy as np
import torch

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.record import multiply, record
from zeus_trt.calibration.search import search
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.evaluation.workload import SessionWorkload, Setting, make_full_setting
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.surrogate import Surrogate

MODELS = ("unet-flow", "unet-epsilon", "unet-v", "dit-flow")
CELLS = [(50, nfe) for nfe in (22, 15, 18, 24, 27)] + [(20, nfe) for nfe in (10, 8, 12)]
ROOT = Path(__file__).parents[1]


class Campaign:
    """The cells of the table, by model and number of steps."""

    def __init__(self, folder: Path, threads: int, samples: Samples):
        self.folder, self.samples = folder, samples
        self._threads = threads
        self.open, self.record, self.bench = cache(self._open), cache(self._record), cache(self._open_bench)

    def _open(self, model: str) -> SessionWorkload:
        bundle = self.folder / f"bundle-{model}"
        if not bundle.exists():
            export_model(ROOT / "examples" / "models" / f"digits-{model}", bundle)
        opened = Bundle.open(bundle)
        engine = OnnxRuntimeEngine(opened.graph(), num_threads=self._threads)
        return SessionWorkload(opened, guidance_scale=2.0, engines={"onnxruntime": engine})

    def _record(self, model: str, num_steps: int) -> TrajectoryStats:
        numbers, path = self.samples.ranges["trajectories"], self.folder / f"gram-{model}-{num_steps}.npz"
        return record(self.open(model), self._setting(model, num_steps), numbers, path=path)

    def _open_bench(self, model: str, num_steps: int) -> Bench:
        return Bench(self.open(model), self._setting(model, num_steps))

    def _setting(self, model: str, num_steps: int) -> Setting:
        return make_full_setting(self.open(model), num_steps)

    def file(self, model: str, num_steps: int, nfe: int) -> Path:
        return self.folder / f"{model}-{num_steps}-{nfe}.json"

    def run(self, model: str, num_steps: int, nfe: int) -> dict:
        file = self.file(model, num_steps, nfe)
        if not file.exists():
            start = time.perf_counter()
            task = Task(self.open(model), self._setting(model, num_steps), self.samples, kernels=())
            task.calibrate([self.record(model, num_steps)], self.bench(model, num_steps), nfe).save(file)
            click.echo(f"{model} N {num_steps} NFE {nfe}: {time.perf_counter() - start:.0f} s", err=True)
            click.echo(CalibratedPlan.load(file).describe(), err=True)
        return summarise(model, CalibratedPlan.load(file))

    def time_search(self, model: str = "unet-epsilon", num_steps: int = 50, nfe: int = 22) -> dict[str, float]:
        """CPU time of a search, of scoring one plan of many, and of one trajectory's Gram matrix."""
        program, stats = self.open(model).program(num_steps), self.record(model, num_steps)
        start = time.process_time()
        search(program, stats, nfe)
        seconds = time.process_time() - start
        full = np.array([letter == "F" for letter in str(Plan.spread(num_steps, nfe))])
        plans = np.repeat(full[None], 512, axis=0)
        rounds = []
        for _ in range(5):
            surrogate = Surrogate(program, stats.products.mean(0), stats.feedback, 4)
            start = time.process_time()
            surrogate.fit(plans)
            rounds.append((time.process_time() - start) / len(plans) * 1e6)
        outputs = list(torch.randn(num_steps, 8, 1024))
        start = time.process_time()
        for _ in range(10):
            multiply(outputs)
        gram_ms = (time.process_time() - start) / 10 / 8 * 1e3
        return {"search_s": round(seconds, 2), "score_us": round(min(rounds), 1), "gram_ms": round(gram_ms, 2)}


def summarise(model: str, found: CalibratedPlan) -> dict:
    """A row of the table."""
    best = found.uniform[0]
    return {
        "model": model,
        "num_steps": found.num_steps,
        "nfe": found.chosen.plan.nfe,
        "calibrated_db": round(found.chosen.psnr_db, 2),
        "uniform_db": round(best.psnr_db, 2),
        "gain_db": round(found.chosen.psnr_db - best.psnr_db, 2),
        "calibrated": found.calibrated,
        "plan": str(found.chosen.plan),
        "uniform_plan": str(best.plan),
        "uniform_predictor": str(best.plan.rule),
        "calls": dict(found.calls),
    }


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished cells.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--threads", default=2, show_default=True)
@click.option("--held-out", default=64, show_default=True)
@click.option("--finished", is_flag=True, help="Run nothing; tell the cells that are in the cache.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    folder: Path, models: tuple[str, ...], threads: int, held_out: int, finished: bool, output: Path | None
) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(folder, threads, Samples(16, held_out=held_out))
    cells = [(model, num_steps, nfe) for num_steps, nfe in CELLS for model in models]
    rows = [campaign.run(*cell) for cell in cells if not finished or campaign.file(*cell).exists()]
    head = {"benchmark": "calibration", "guidance_scale": 2.0, "held_out": held_out, "threads": threads}
    result = {**head, **campaign.time_search(), "machine": describe_machine(), "rows": rows}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
