"""Published rules and policies at equal calls, on the digits models.

    python benchmarks/rules.py --cache DIR

At 22 and 15 calls of 50 every rule runs on plans of as many full steps: spread evenly, and for 22 the paper's r = 4 in
the default window; the better one counts. A policy's setting is found by bisection on 8 other samples, so that its rows
make about as many calls; the table has the calls that it made. Calibrated plans and L2P's weights come from 16 recorded
trajectories. 64 held-out samples, guidance 2, the checkpoints' own solvers, PSNR to the full run. A finished model is
kept in the cache. Writes docs/rules table and picture with --docs. The last line is one JSON object.
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
from zeus_trt.calibration.search import search
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
CANDIDATES = 3  # of a search that are run
_BISECTIONS = 7


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
        self.bench = Bench(self.workload, self.setting)
        self._references: dict[int, torch.Tensor] = {}
        path = folder / f"gram-{model}-{STEPS}.npz"
        self.stats = record(self.workload, self.setting, self.ranges["trajectories"], path=path)

    def measure_rules(self, nfe: int) -> list[dict[str, Any]]:
        """A row for every rule, for L2P's weights and for the calibrated plan."""
        plans = [Plan.spread(STEPS, nfe)] + ([Plan.uniform(STEPS, 4)] if nfe == Plan.uniform(STEPS, 4).nfe else [])
        rows = [self._measure(name, [plan.with_predictor(name) for plan in plans]) for name in RULES]
        rows.append(self._measure("l2p", [fit_least_squares(self.stats, plan) for plan in plans]))
        found = search(self.workload.program(STEPS), self.stats, nfe)[:CANDIDATES]
        best = max(found, key=lambda plan: self.bench.measure(plan, self.ranges["validation"]))
        return [*rows, self._measure("calibrated", [best])]

    def measure_policies(self, nfe: int) -> list[dict[str, Any]]:
        """A row for every policy, at the setting whose rows make about ``nfe`` calls."""
        drift = partial(_on_plan, DriftPolicy, Plan.uniform(STEPS, 6))
        makers = {"adaptive": AdaptivePolicy, "easycache": EasyCachePolicy, "drift": drift}
        rows = [self._bisect(name, make, nfe) for name, make in makers.items()]
        settings = [
            self._run(partial(SadaPolicy, interval=interval), self.ranges["validation"][:8]) for interval in range(2, 9)
        ]
        nearest = 2 + min(range(7), key=lambda place: abs(settings[place][0] - nfe))
        return [
            *rows,
            self._row("sada", nearest, *self._run(partial(SadaPolicy, interval=nearest), self.ranges["held_out"])),
        ]

    def _measure(self, name: str, plans: list[Plan]) -> dict[str, Any]:
        try:
            found = [(self.bench.measure(plan, self.ranges["held_out"]), plan) for plan in plans]
        except ZeusError as error:
            return {"rule": name, "psnr_db": None, "reason": str(error).split(";")[0]}
        psnr_db, plan = max(found, key=lambda one: one[0])
        return {"rule": name, "calls": plan.nfe, "psnr_db": round(psnr_db, 2), "plan": str(plan)}

    def _bisect(self, name: str, make: PolicyMaker, nfe: int) -> dict[str, Any]:
        low, high = 1e-4, 10.0
        for _ in range(_BISECTIONS):
            middle = (low * high) ** 0.5
            calls, _psnr = self._run(partial(make, threshold=middle), self.ranges["validation"][:8])
            low, high = (middle, high) if calls > nfe else (low, middle)
        setting = (low * high) ** 0.5
        return self._row(name, setting, *self._run(partial(make, threshold=setting), self.ranges["held_out"]))

    def _row(self, name: str, setting: float, calls: float, psnr_db: float) -> dict[str, Any]:
        return {
            "rule": name,
            "setting": float(f"{setting:.3g}"),
            "calls": round(calls, 1),
            "psnr_db": round(psnr_db, 2),
        }

    def _run(self, make: PolicyMaker, numbers: range) -> tuple[float, float]:
        """Calls of a row, mean, and mean PSNR."""
        calls, values = [], []
        for start in range(0, len(numbers), 16):
            part, made = numbers[start : start + 16], []
            maker = _Watched(make, made)
            images = self.workload.run(replace(self.setting, policy=maker), part).images
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


def write_table(results: dict[str, dict[str, list[dict[str, Any]]]], nfe: int) -> str:
    """A row per rule, a column per model; the calls where they are not ``nfe``."""
    models = [*results]
    lines = [f"| rule | {' | '.join(models)} |", f"| --- |{' --- |' * len(models)}"]
    found = {model: {row["rule"]: row for row in results[model][str(nfe)]} for model in models}
    names = [*next(iter(found.values()))]
    mean = {name: [found[model][name]["psnr_db"] for model in models] for name in names}
    for name in sorted(names, key=lambda name: -sum(value or 0.0 for value in mean[name])):
        cells = []
        for model in models:
            row = found[model][name]
            calls = "" if row["psnr_db"] is None or row["calls"] == nfe else f" ({row['calls']:g} calls)"
            cells.append("-" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}{calls}")
        lines.append(f"| {f'**{name}**' if name == 'calibrated' else f'`{name}`'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: dict[str, dict[str, list[dict[str, Any]]]]) -> bytes:
    """PSNR by rule at 22 calls, a mark per model, best mean first."""
    figure, axes = make_figure(height=5.5, width=10)
    models = [*results]
    rows = {model: {row["rule"]: row["psnr_db"] for row in results[model]["22"]} for model in models}
    names = sorted(rows[models[0]], key=lambda name: sum(rows[model][name] or 0.0 for model in models))
    for model, marker in zip(models, "osD^", strict=False):
        known = [(place, rows[model][name]) for place, name in enumerate(names) if rows[model][name] is not None]
        axes.plot([psnr for _, psnr in known], [place for place, _ in known], marker, label=model)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="PSNR to the full run at 22 of 50 calls, dB")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return encode_figure(figure)


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
    results: dict[str, Any] = {}
    for model in models:
        file = folder / f"rules-{model}-{held_out}.json"
        if not file.exists():
            study = Study(folder, model, Samples(held_out=held_out), threads)
            found = {str(nfe): study.measure_rules(nfe) + study.measure_policies(nfe) for nfe in BUDGETS}
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        results[model] = json.loads(file.read_text(encoding="utf-8"))
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
