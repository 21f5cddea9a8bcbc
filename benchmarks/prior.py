"""Plans of the prior beside the best uniform plans, each model left out of the prior that it is run with.

    python benchmarks/prior.py --cache DIR

The digits models are exported; guidance 2, 64 held-out samples, the checkpoints' own solvers or others. Where
`results/calibration.json` has the best uniform plan on these samples, its figure is taken. Elsewhere uniform plans of
as many calls are measured: evenly spread, any window, any reading of the rule. The best on the held-out samples
themselves counts, so the comparison favours them. Finished cells stay in the cache. The last line is one JSON object.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import torch

from zeus_trt.calibration.search import list_uniform
from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.evaluation.workload import SessionWorkload, make_full_setting
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.runtime.scheduler import build_scheduler, make_scheduler
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.prior import load_kernels, make_prior_plan

MODELS = ("unet-flow", "unet-epsilon", "unet-v", "dit-flow")
CELLS = (
    *(("default", 50, nfe) for nfe in (22, 18, 15)),
    *(("default", 20, nfe) for nfe in (10, 8)),
    *(("default@3", 28, nfe) for nfe in (14, 10)),
    *((solver, 28, nfe) for solver in ("dpmpp-2m", "unipc") for nfe in (14, 10)),
)
"""Solver, N and calls; ``@3`` is the shift of a flow schedule."""

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "benchmarks" / "results" / "calibration.json"
FIRST, BATCH = 32, 2  # the first held-out sample, as in benchmarks/calibration.py


class Shifted(SessionWorkload):
    """A bundle whose solver may be named with a shift."""

    def _make_scheduler(self, solver: str) -> Any:
        name, _, shift = solver.partition("@")
        config = {**self.bundle.scheduler_config, **({"shift": float(shift)} if shift else {})}
        if name == "default":
            return build_scheduler(config) if shift else None
        return make_scheduler(config, name)


class Campaign:
    """Measures plans, and keeps all that was measured."""

    def __init__(self, folder: Path, threads: int, held_out: int):
        self.folder, self.threads = folder, threads
        self.numbers = range(FIRST, FIRST + held_out)
        self.open, self.make_references = cache(self._open), cache(self._make_references)

    def _open(self, model: str) -> SessionWorkload:
        bundle = self.folder / f"bundle-{model}"
        if not bundle.exists():
            export_model(ROOT / "examples" / "models" / f"digits-{model}", bundle)
        opened = Bundle.open(bundle)
        engine = OnnxRuntimeEngine(opened.graph(), num_threads=self.threads)
        return Shifted(opened, guidance_scale=2.0, engines={"onnxruntime": engine})

    def _make_references(
        self, model: str, solver: str, num_steps: int, numbers: Sequence[int]
    ) -> dict[int, torch.Tensor]:
        file = self.folder / f"full-{model}-{solver}-{num_steps}.pt"
        found = torch.load(file, weights_only=True) if file.exists() else {}
        setting = make_full_setting(self.open(model), num_steps, solver)
        missing = [number for number in numbers if number not in found]
        for start in range(0, len(missing), BATCH):
            part = missing[start : start + BATCH]
            found.update(zip(part, self.open(model).run(setting, part).images.clone(), strict=True))
        if missing:
            torch.save(found, file)
        return found

    def measure(
        self, model: str, solver: str, num_steps: int, plan: Plan, numbers: Sequence[int] | None = None
    ) -> float:
        """Mean PSNR in dB to the full runs of samples, the held-out ones by default."""
        numbers = numbers or self.numbers
        key = hashlib.sha256(f"{plan}{plan.rule.to_json()}".encode()).hexdigest()[:16]
        file = self.folder / f"psnr-{model}-{solver}-{num_steps}-{key}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        missing = [number for number in numbers if str(number) not in known]
        setting = replace(make_full_setting(self.open(model), num_steps, solver), plan=plan)
        for start in range(0, len(missing), BATCH):
            references = self.make_references(model, solver, num_steps, numbers)
            part = missing[start : start + BATCH]
            for number, image in zip(part, self.open(model).run(setting, part).images, strict=True):
                known[str(number)] = measure_psnr(image[None], references[number][None])
            file.write_text(json.dumps(known))
        return sum(known[str(number)] for number in numbers) / len(numbers)

    def run(self, model: str, solver: str, num_steps: int, nfe: int) -> dict:
        """A row of the table."""
        program = self.open(model).program(num_steps, solver)
        others = tuple(kernel for kernel in load_kernels() if kernel.name != model)
        plan = make_prior_plan(program, nfe, others)
        found = self.measure(model, solver, num_steps, plan)
        return {
            "model": model, "solver": solver, "num_steps": num_steps, "nfe": nfe, "plan": str(plan),
            "source": plan.source, "prior_db": round(found, 2), **self.find_uniform(model, solver, num_steps, nfe),
        }  # fmt: skip

    def find_uniform(self, model: str, solver: str, num_steps: int, nfe: int) -> dict:
        """The best uniform plan of as many calls, and the calibrated one where it is known."""
        asked = {"model": model, "num_steps": num_steps, "nfe": nfe}
        for row in json.loads(KNOWN.read_text(encoding="utf-8"))["rows"]:
            if solver == "default" and len(self.numbers) == 64 and asked.items() <= row.items():
                return {
                    name: row[name] for name in ("uniform_db", "uniform_plan", "uniform_predictor", "calibrated_db")
                }
        plans = list_uniform(self.open(model).count_evaluations(num_steps, solver), nfe)
        db, best = max(((self.measure(model, solver, num_steps, one), one) for one in plans), key=lambda one: one[0])
        return {"uniform_db": round(db, 2), "uniform_plan": str(best), "uniform_predictor": str(best.rule)}


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished cells.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--cells", default=len(CELLS), show_default=True, help="Only the first so many settings.")
@click.option("--held-out", default=64, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(folder: Path, models: tuple[str, ...], cells: int, held_out: int, threads: int, output: Path | None) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    campaign, rows = Campaign(folder, threads, held_out), []
    for solver, num_steps, nfe in CELLS[:cells]:
        for model in models:
            if "@" in solver and "flow" not in model:
                continue
            rows.append(campaign.run(model, solver, num_steps, nfe))
            click.echo(json.dumps(rows[-1]), err=True)
    head = {"benchmark": "prior", "guidance_scale": 2.0, "held_out": held_out}
    result = {**head, "machine": describe_machine(), "rows": rows}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
