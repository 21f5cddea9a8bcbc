"""Quality over full steps: calibrated plans, uniform ones, and the paper's presets."""

import csv
import io
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zeus_trt.calibration.calibrate import Task, measure
from zeus_trt.evaluation.plots import encode_figure, make_figure
from zeus_trt.files import write_atomically
from zeus_trt.zeus_graph import PRESETS, Plan
from zeus_trt.zeus_graph.calibrated_plan import MEAN, CalibratedPlan, Measured

_LEAST = 8


@dataclass(frozen=True)
class Point:
    """The best plans of at most so many full steps, and their PSNR in dB on the held-out samples, by the objective.

    Where a cheaper budget's plan is at least as good as this budget's own, it takes its place.

    Args:
        nfe: Full steps that the budget allows.
        speedup_bound: Evaluations / full steps of the chosen plan.
        calibrated_db: Of the chosen plan; that of the uniform one where calibration did not beat it.
        uniform_db: Of the best uniform plan, the presets among them.
        preset: The paper's preset that has as many full steps, if any.
        preset_db: Of that preset.
        plan: The chosen plan.
        plan_nfe: Budget that the chosen plan comes from: its number of full steps.
        uniform_nfe: The same for the best uniform plan.
    """

    nfe: int
    speedup_bound: float
    calibrated_db: float
    uniform_db: float
    preset: str | None
    preset_db: float | None
    plan: str
    plan_nfe: int
    uniform_nfe: int

    def improve(self, cheaper: "Point") -> "Point":
        """This point, with those plans of the cheaper one that are at least as good as its own."""
        names: list[str] = []
        if cheaper.calibrated_db >= self.calibrated_db:
            names += ["calibrated_db", "plan", "plan_nfe", "speedup_bound"]
        if cheaper.uniform_db >= self.uniform_db:
            names += ["uniform_db", "uniform_nfe"]
        return replace(self, **{name: getattr(cheaper, name) for name in names})


@dataclass(frozen=True)
class Pareto:
    """Points, by their number of full steps; no quality falls from one to the next.

    Args:
        points: The points.
        found: What each budget's calibration found, and its best plan with the paper's presets.
        objective: What PSNR is of: ``mean`` of the samples, or ``worst-decile``.
    """

    points: tuple[Point, ...]
    found: tuple[tuple[CalibratedPlan, Measured], ...] = ()
    objective: str = MEAN

    @property
    def plans(self) -> tuple[CalibratedPlan, ...]:
        """The calibrations of the points whose plan is their own; a preset that is better takes a plan's place."""
        return tuple(
            one if best is one.chosen else replace(one, chosen=best, calibrated=False, predicted_db=math.nan)
            for point, (one, best) in zip(self.points, self.found, strict=True)
            if point.plan_nfe == point.nfe
        )

    def describe(self) -> str:
        """A table for the terminal."""
        lines = ["NFE  bound  calibrated      uniform         preset"]
        for point in self.points:
            preset = "" if point.preset_db is None else f"{point.preset_db:.1f} dB ({point.preset})"
            best = _say_db(point.calibrated_db, point.plan_nfe, point.nfe)
            uniform = _say_db(point.uniform_db, point.uniform_nfe, point.nfe)
            lines.append(f"{point.nfe:>3}  {point.speedup_bound:.2f}x  {best:<14}  {uniform:<14}  {preset}".rstrip())
        if any(min(point.plan_nfe, point.uniform_nfe) < point.nfe for point in self.points):
            lines.append("(N): the plan of the cheaper budget N, which is at least as good")
        if self.objective != MEAN:
            lines.append("PSNR is that of the worst tenth of the samples")
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
            path.write_bytes(_draw(self.points))


def trace_pareto(task: Task) -> Pareto:
    """Calibrates about a dozen numbers of full steps, from 8 to one less than all, the presets' among them."""
    count = len(task.setting.plan)
    presets = {plan.nfe: (name, plan) for name, ratio in PRESETS.items() if (plan := Plan.uniform(count, ratio))}
    stats, bench = task.record(), task.bench()

    def score(one: Measured) -> float:
        return one.score(task.objective)

    points: list[Point] = []
    made: list[tuple[CalibratedPlan, Measured]] = []
    for nfe in list_budgets(count):
        found = task.calibrate(stats, bench, nfe)
        preset, preset_db = None, None
        uniform_db, best = score(found.uniform[0]), found.chosen
        if nfe in presets:
            preset, plan = presets[nfe]
            measured = measure(bench, plan, task.samples.ranges["held_out"])
            preset_db = score(measured)
            uniform_db = max(uniform_db, preset_db)
            best = max(best, measured, key=score)
        made.append((found, best))
        own = Point(nfe, count / nfe, score(best), uniform_db, preset, preset_db, str(best.plan), nfe, nfe)
        points.append(own.improve(points[-1]) if points else own)
    return Pareto(tuple(points), tuple(made), task.objective)


def list_budgets(num_evaluations: int) -> tuple[int, ...]:
    """About nine numbers of full steps in geometric order, and those of the presets."""
    least, most = min(_LEAST, max(3, num_evaluations // 2)), num_evaluations - 1
    spread = {round(least * (most / least) ** (k / 8)) for k in range(9)}
    presets = {Plan.uniform(num_evaluations, ratio).nfe for ratio in PRESETS.values()}
    return tuple(sorted(nfe for nfe in spread | presets if 3 <= nfe <= most))


def _say_db(psnr_db: float, plan_nfe: int, nfe: int) -> str:
    return f"{psnr_db:.1f} dB" + (f" ({plan_nfe})" if plan_nfe < nfe else "")


def _draw(points: tuple[Point, ...]) -> bytes:
    figure, axes = make_figure(4.5, 7)
    axes.set(xlabel="full steps (NFE), at most", ylabel="PSNR to the full run, dB")
    counts = [point.nfe for point in points]
    lines = (
        ("calibrated", "o-", "#1f4e79", [(point.calibrated_db, point.plan_nfe) for point in points]),
        ("best uniform", "s--", "#8a8a8a", [(point.uniform_db, point.uniform_nfe) for point in points]),
    )
    for label, style, colour, found in lines:
        axes.plot(counts, [psnr_db for psnr_db, _ in found], style, color=colour, label=label)
        taken = [(nfe, db) for nfe, (db, own) in zip(counts, found, strict=True) if own < nfe]
        axes.plot([nfe for nfe, _ in taken], [db for _, db in taken], style[0], color=colour, mfc="white", zorder=3)
    if any(min(point.plan_nfe, point.uniform_nfe) < point.nfe for point in points):
        axes.plot([], [], "o", color="#1f4e79", mfc="white", label="a cheaper budget's plan, as good or better")
    presets = [(point.nfe, point.preset_db, str(point.preset)) for point in points if point.preset_db is not None]
    axes.plot([p[0] for p in presets], [p[1] for p in presets], "*", ms=13, color="#e08a1e", label="presets", zorder=4)
    for nfe, preset_db, name in presets:
        axes.annotate(name, (nfe, preset_db), xytext=(6, -14), textcoords="offset points")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return encode_figure(figure, dpi=120)
