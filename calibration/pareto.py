"""Quality over full steps: calibrated plans, uniform ones, and the paper's presets."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_trt.calibration.task import Task
from zeus_trt.files import write_atomically
from zeus_trt.zeus_graph import PRESETS, StepPlan

if TYPE_CHECKING:
    from PIL import Image

_LEAST = 8


@dataclass(frozen=True)
class Point:
    """Plans of so many full steps, and their PSNR in dB on the held-out samples.

    Args:
        nfe: Full steps.
        speedup_bound: Evaluations / NFE.
        calibrated_db: Of the chosen plan; that of the uniform one where calibration did not beat it.
        uniform_db: Of the best uniform plan.
        preset: The paper's preset that has as many full steps, if any.
        preset_db: Of that preset.
        plan: The chosen plan.
    """

    nfe: int
    speedup_bound: float
    calibrated_db: float
    uniform_db: float
    preset: str | None
    preset_db: float | None
    plan: str


@dataclass(frozen=True)
class Pareto:
    """Points, by their number of full steps."""

    points: tuple[Point, ...]

    def describe(self) -> str:
        """A table for the terminal."""
        lines = ["NFE  bound  calibrated  uniform  preset"]
        for point in self.points:
            preset = "" if point.preset_db is None else f"{point.preset_db:.1f} ({point.preset})"
            lines.append(
                f"{point.nfe:>3}  {point.speedup_bound:.2f}x  {point.calibrated_db:>7.1f} dB  "
                f"{point.uniform_db:>4.1f} dB  {preset}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The points as JSON data."""
        return {"points": [vars(point) for point in self.points]}

    def save(self, output: Path) -> None:
        """Writes ``output`` with the endings .csv and .png."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(vars(self.points[0]))
        writer.writerows(vars(point).values() for point in self.points)
        with write_atomically(output.with_suffix(".csv")) as path:
            path.write_text(text.getvalue(), encoding="utf-8")
        with write_atomically(output.with_suffix(".png")) as path:
            _draw(self.points).save(path, format="png")


def trace_pareto(task: Task) -> Pareto:
    """Calibrates about a dozen numbers of full steps, from 8 to one less than all, the presets' among them."""
    count = task.workload.count_evaluations(task.num_steps, task.solver)
    presets = {plan.nfe: (name, plan) for name, ratio in PRESETS.items() if (plan := StepPlan.uniform(count, ratio))}
    gram, bench = task.record(), task.bench()
    points = []
    for nfe in list_budgets(count):
        found = task.calibrate(gram, bench, nfe)
        preset, preset_db = None, None
        if nfe in presets:
            preset, plan = presets[nfe]
            preset_db = bench.measure(plan, "zeus", task.samples.ranges["held_out"])
        uniform_db, chosen = found.uniform[0].psnr_db, found.chosen
        points.append(Point(nfe, count / nfe, chosen.psnr_db, uniform_db, preset, preset_db, str(chosen.plan)))
    return Pareto(tuple(points))


def list_budgets(num_evaluations: int) -> tuple[int, ...]:
    """About nine numbers of full steps in geometric order, and those of the presets."""
    least, most = min(_LEAST, max(3, num_evaluations // 2)), num_evaluations - 1
    spread = {round(least * (most / least) ** (k / 8)) for k in range(9)}
    presets = {StepPlan.uniform(num_evaluations, ratio).nfe for ratio in PRESETS.values()}
    return tuple(sorted(nfe for nfe in spread | presets if 3 <= nfe <= most))


def _draw(points: tuple[Point, ...]) -> "Image.Image":
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="full steps (NFE)", ylabel="PSNR to the full run, dB")
    counts = [point.nfe for point in points]
    axes.plot(counts, [point.calibrated_db for point in points], "o-", color="#1f4e79", label="calibrated")
    axes.plot(counts, [point.uniform_db for point in points], "s--", color="#8a8a8a", label="best uniform")
    presets = [(point.nfe, point.preset_db, str(point.preset)) for point in points if point.preset_db is not None]
    axes.plot([p[0] for p in presets], [p[1] for p in presets], "*", ms=13, color="#e08a1e", label="presets")
    for nfe, preset_db, name in presets:
        axes.annotate(name, (nfe, preset_db), xytext=(6, -12), textcoords="offset points")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return Image.open(buffer).convert("RGB")
