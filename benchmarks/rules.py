"""Published rules and policies at equal calls, on the digits models.

    python benchmarks/rules.py --cache DIR

At 22 and 15 calls of 50 every rule runs on the same uniform plan of as many full steps, any window: the one where
`zeus` is best on 4 samples. A policy's setting is found by bisection on these, so that its rows make about as many
calls; the table has the calls that it made. L2P's weights are for that plan, the calibrated plan for the budget, both
from 16 recorded trajectories. Guidance 2, the checkpoints' own solvers, PSNR to the full run on held-out samples. A
finished row is kept in the cache. The last line is one JSON object.
"""

import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples
from zeus_trt.calibration.least_squares import fit_least_squares
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import list_uniform, search
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.plots import encode_figure, make_figure
from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.evaluation.workload import SessionWorkload, make_full_setting
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.zeus_graph import PREDICTORS, Plan
from zeus_trt.zeus_graph.criteria import AdaptivePolicy, EasyCachePolicy, SadaPolicy
from zeus_trt.zeus_graph.policy import PolicyMaker
from zeus_trt.zeus_graph.row_policy import DriftPolicy

MODELS = ("unet-flow", "unet-epsilon", "unet-v", "dit-flow")
BUDGETS = (22, 15)
STEPS = 50
RULES = [name for name in PREDICTORS if name not in ("local-1", "lagrange-4", "zeus-previous-full", "zeus-paper")]
ROOT = Path(__file__).parents[1]
TRIALS, CANDIDATES, BISECTIONS = 4, 2, 6  # samples, plans of a search and settings that are tried


class Study:
    """The measurements of one model."""

    def __init__(self, folder: Path, model: str, samples: Samples, threads: int):
        bundle = folder / f"bundle-{model}"
        if not bundle.exists():
            export_model(ROOT / "examples" / "models" / f"digits-{model}", bundle)
        opened = Bundle.open(bundle)
        engine = OnnxRuntimeEngine(opened.graph(), num_threads=threads)
        self.workload = SessionWorkload(opened, guidance_scale=2.0, engines={"onnxruntime": engine})
        self.setting, self.ranges = make_full_setting(self.workload, STEPS), samples.ranges
        self.trials, self.held_out = self.ranges["validation"][:TRIALS], self.ranges["held_out"]
        self.bench = Bench(self.workload, self.setting)
        self._references: dict[int, torch.Tensor] = {}
        path = folder / f"gram-{model}-{STEPS}.npz"
        self.stats = record(self.workload, self.setting, self.ranges["trajectories"], path=path)
        self._file = folder / f"rules-{model}-{len(self.held_out)}.json"
        self.found: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            self.found = json.loads(self._file.read_text(encoding="utf-8"))

    def run(self, nfe: int) -> None:
        """Measures the rows of a budget that are missing."""
        found = self.found.setdefault(str(nfe), {})
        letters = None
        for name in [*RULES, "l2p", "calibrated", *POLICIES, "sada"]:
            if name in found:
                continue
            if name in POLICIES:
                found[name] = self._bisect(POLICIES[name], nfe)
            elif name == "sada":
                found[name] = self._measure_sada(nfe)
            elif name == "calibrated":
                plans = search(self.workload.program(STEPS), self.stats, nfe)[:CANDIDATES]
                found[name] = self._measure(max(plans, key=lambda plan: self.bench.measure(plan, self.trials)))
            else:
                letters = letters or self._choose_plan(nfe)
                rule = None if name == "l2p" else name
                made = fit_least_squares(self.stats, letters) if rule is None else letters.with_predictor(rule)
                found[name] = self._measure(made)
            click.echo(f"{self._file.stem} {nfe} {name}: {found[name]}", err=True)
            self._file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    def _choose_plan(self, nfe: int) -> Plan:
        plans = {plan.steps: Plan(plan.steps) for plan in list_uniform(STEPS, nfe)}
        return max(plans.values(), key=lambda plan: self.bench.measure(plan.with_predictor("zeus"), self.trials))

    def _measure(self, plan: Plan) -> dict[str, Any]:
        try:
            psnr_db = self.bench.measure(plan, self.held_out)
        except ZeusError as error:
            return {"psnr_db": None, "reason": str(error).split(";")[0]}
        return {"calls": plan.nfe, "psnr_db": round(psnr_db, 2), "plan": str(plan)}

    def _bisect(self, make: PolicyMaker, nfe: int) -> dict[str, Any]:
        low, high = 1e-4, 10.0
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            calls, _psnr = self._follow(partial(make, threshold=middle), self.trials)
            low, high = (middle, high) if calls > nfe else (low, middle)
        return self._measure_policy(partial(make, threshold=(low * high) ** 0.5), (low * high) ** 0.5)

    def _measure_sada(self, nfe: int) -> dict[str, Any]:
        def miss(interval: int) -> float:
            return abs(self._follow(partial(SadaPolicy, interval=interval), self.trials)[0] - nfe)

        nearest = min((2, 4, 8), key=miss)
        return self._measure_policy(partial(SadaPolicy, interval=nearest), nearest)

    def _measure_policy(self, make: PolicyMaker, setting: float) -> dict[str, Any]:
        calls, psnr_db = self._follow(make, self.held_out)
        return {"setting": float(f"{setting:.3g}"), "calls": round(calls, 1), "psnr_db": round(psnr_db, 2)}

    def _follow(self, make: PolicyMaker, numbers: range) -> tuple[float, float]:
        """Calls of a row, mean, and mean PSNR."""
        calls, values = [], []
        for start in range(0, len(numbers), 16):
            part, made = numbers[start : start + 16], []
            images = self.workload.run(replace(self.setting, policy=_Watched(make, made)), part).images
            calls += [plan.count("F") for plan in made[0].row_plans]
            missing = [number for number in part if number not in self._references]
            if missing:
                self._references.update(zip(missing, self.workload.run(self.setting, missing).images, strict=True))
            pairs = zip(images, part, strict=True)
            values += [measure_psnr(image[None], self._references[number][None]) for image, number in pairs]
        return sum(calls) / len(calls), sum(values) / len(values)


class _Watched:
    """Makes policies, and keeps them."""

    def __init__(self, make: PolicyMaker, made: list[Any]):
        self._make, self._made = make, made
        self.predictor = getattr(getattr(make, "func", make), "predictor", None)

    def __call__(self, plan: Plan, grid: Any) -> Any:
        self._made.append(self._make(plan, grid))
        return self._made[-1]


def _on_plan(make: Any, letters: Plan, plan: Plan, grid: Any, **settings: Any) -> Any:
    return make(replace(plan, steps=letters.steps), grid, **settings)


POLICIES: dict[str, PolicyMaker] = {
    "adaptive": AdaptivePolicy,
    "easycache": EasyCachePolicy,
    "drift": partial(_on_plan, DriftPolicy, Plan.uniform(STEPS, 6)),
}
Results = dict[str, dict[str, dict[str, Any]]]  # by model, calls and rule


def write_table(results: Results, nfe: int) -> str:
    """A row per rule, a column per model; the calls where they are not ``nfe``."""
    models, mean = [*results], _average(results, nfe)
    lines = [f"| rule | {' | '.join(models)} |", f"| --- |{' --- |' * len(models)}"]
    for name in sorted(mean, key=mean.__getitem__, reverse=True):
        cells = []
        for row in (results[model][str(nfe)][name] for model in models):
            calls = "" if row.get("calls", nfe) == nfe else f" ({row['calls']:g} calls)"
            cells.append("-" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}{calls}")
        lines.append(f"| {f'**{name}**' if name == 'calibrated' else f'`{name}`'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Results) -> bytes:
    """PSNR by rule at the larger budget, a mark per model, best mean first."""
    figure, axes = make_figure(height=5.5, width=10)
    mean = _average(results, BUDGETS[0])
    names = sorted(mean, key=mean.__getitem__)
    for (model, found), marker in zip(results.items(), "osD^", strict=False):
        rows = found[str(BUDGETS[0])]
        known = [(rows[name]["psnr_db"], place) for place, name in enumerate(names) if rows[name]["psnr_db"]]
        axes.plot(*zip(*known, strict=True), marker, label=model)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=f"PSNR to the full run at {BUDGETS[0]} of {STEPS} calls, dB")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return encode_figure(figure)


def _average(results: Results, nfe: int) -> dict[str, float]:
    """By rule, the mean over the models that it runs on."""
    means = {}
    for name in next(iter(results.values()))[str(nfe)]:
        values = [found[str(nfe)][name]["psnr_db"] for found in results.values()]
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if known else 0.0
    return means


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished models.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--threads", default=2, show_default=True)
@click.option("--held-out", default=64, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), help="Write the picture of docs/rules.md.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    folder: Path, models: tuple[str, ...], threads: int, held_out: int, picture: Path | None, output: Path | None
) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for model in models:
        study = Study(folder, model, Samples(16, held_out=held_out), threads)
        for nfe in BUDGETS:
            study.run(nfe)
        results[model] = study.found
    for nfe in BUDGETS:
        click.echo(f"\n{nfe} of {STEPS} calls, PSNR in dB:\n\n{write_table(results, nfe)}", err=True)
    if picture:
        picture.write_bytes(draw(results))
    head = {"benchmark": "rules", "command": shlex.join(sys.argv), "guidance_scale": 2.0, "held_out": held_out}
    result = {**head, "machine": describe_machine(), "models": results}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
