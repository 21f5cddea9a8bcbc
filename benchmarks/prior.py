"""Plans of the prior beside the best uniform plans, each model left out of the prior that it is run with.

    python benchmarks/prior.py --cache DIR -o RESULTS.json --table docs/prior.md

The digits models are exported; guidance 2, held-out samples from 32 on, the checkpoints' own solvers or others.
"Uniform" is the plan that `results/calibration.json` calls the best uniform one. Without one there it is the best, on
the held-out samples themselves, of three: the evenly spread or windowed plans, of any reading of the rule, that the
model's own kernel foresees to be best. "Zeus" is what the prior falls back to. Finished cells stay in the cache; the
results are written after every row. The last line is one JSON object.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
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
from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.plan import PRESETS
from zeus_trt.zeus_graph.prior import MARGIN, foresee, foresee_error, load_kernels, search

MODELS = ("unet-flow", "unet-epsilon", "unet-v", "dit-flow")
CELLS = (
    *(("default", 50, nfe) for nfe in (22, 15)),
    *(("default", 20, nfe) for nfe in (10, 8)),
    *(("default@3", 28, nfe) for nfe in (14, 10)),
    *((solver, 28, nfe) for nfe in (14, 10) for solver in ("dpmpp-2m", "unipc")),
    ("default", 50, 18),
)
"""Solver, N and calls; ``@3`` is the shift of a flow schedule."""

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "benchmarks" / "results" / "calibration.json"
_PAGE = """# The prior, measured

Made by `python benchmarks/prior.py`: do not edit it. PSNR to the full run in dB, best uniform plan of as many calls ->
plan of the prior. **The model of each column is left out of the prior that it runs with.** {held_out} held-out samples,
guidance {guidance_scale:g}. `default` is the checkpoint's own solver; `@3` is the shift of a flow schedule. *Used*: for
whose solver the prior of all four models gives its plan; elsewhere it falls back to `zeus`.
"""
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
        plan = search(program, nfe, [kernel for kernel in load_kernels() if kernel.name != model])
        turbo = Plan.uniform(program.num_evaluations, PRESETS["turbo"])
        measure = partial(self.measure, model, solver, num_steps)
        rivals = self.list_rivals(model, solver, num_steps, nfe)
        uniform_db, uniform = max(((measure(one), one) for one in rivals), key=itemgetter(0))
        gains = foresee(program, nfe, load_kernels())
        numbers = {
            "prior_db": measure(plan), "uniform_db": uniform_db, "turbo_db": measure(turbo),
            "zeus_db": measure(Plan.spread(program.num_evaluations, nfe)),
        }  # fmt: skip
        return {
            "model": model, "solver": solver, "num_steps": num_steps, "nfe": nfe, "plan": str(plan),
            **{name: round(db, 2) for name, db in numbers.items()},
            "uniform_plan": str(uniform), "uniform_predictor": str(uniform.rule), "turbo_nfe": turbo.nfe,
            "foreseen_db": {name: round(gain, 2) for name, gain in gains.items()},
            "falls_back": min(gains.values()) < MARGIN,
        }  # fmt: skip

    def list_rivals(self, model: str, solver: str, num_steps: int, nfe: int) -> list[Plan]:
        """Uniform plans of as many calls."""
        asked = {"model": model, "num_steps": num_steps, "nfe": nfe}
        for row in json.loads(KNOWN.read_text(encoding="utf-8"))["rows"]:
            if solver == "default" and asked.items() <= row.items():
                return [replace(Plan(row["uniform_plan"]), predictor=Predictor.parse(row["uniform_predictor"]))]
        program = self.open(model).program(num_steps, solver)
        own = next(kernel for kernel in load_kernels() if kernel.name == model)
        plans = list_uniform(program.num_evaluations, nfe)
        return sorted(plans, key=lambda plan: foresee_error(program, plan, own))[:3]


def make_table(result: dict[str, Any]) -> str:
    """The rows as a page of markdown: best uniform plan -> plan of the prior."""
    found = {(row["solver"], row["num_steps"], row["nfe"], row["model"]): row for row in result["rows"]}
    lines = [
        _PAGE.format(**result),
        "| solver, N, calls | " + " | ".join(MODELS) + " | gain | used |",
        "| --- " * 7 + "|",
    ]
    for cell in dict.fromkeys(key[:3] for key in found):
        rows = [found.get((*cell, model)) for model in MODELS]
        gains = [row["prior_db"] - row["uniform_db"] for row in rows if row]
        shown = [f"{row['uniform_db']:.1f} -> {row['prior_db']:.1f}" if row else "" for row in rows]
        used = ", ".join(row["model"] for row in rows if row and not row["falls_back"]) or "no"
        lines.append(
            f"| {', '.join(map(str, cell))} | {' | '.join(shown)} | {min(gains):+.1f} to {max(gains):+.1f} | {used} |"
        )
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished cells.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--cells", default=len(CELLS), show_default=True, help="Only the first so many settings.")
@click.option("--held-out", default=64, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option("--table", type=click.Path(path_type=Path), help="A page of markdown.")
def main(folder, models, cells, held_out, threads, output, table) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    campaign, rows = Campaign(folder, threads, held_out), []
    result = {
        "benchmark": "prior", "guidance_scale": 2.0, "held_out": held_out, "machine": describe_machine(), "rows": rows
    }  # fmt: skip
    for solver, num_steps, nfe in CELLS[:cells]:
        for model in models:
            if "@" in solver and "flow" not in model:
                continue
            rows.append(campaign.run(model, solver, num_steps, nfe))
            click.echo(json.dumps(rows[-1]), err=True)
            if output:
                output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            if table:
                table.write_text(make_table(result), encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
