"""Plots of a comparison, each a PNG."""

import io
from collections.abc import Sequence
from typing import Any

from zeus_trt.evaluation.comparison import Comparison

COLOURS = {"F": "#1f4e79", "Q": "#5b9bd5", "X": "#e08a1e", "R": "#c9c9c9"}
_KEYS = (
    ("o", "#1f4e79", "skipped steps, 95 %"),
    ("s", "#b3432b", "caches, 95 %"),
    ("|", "#e08a1e", "bound N / NFE"),
)
_MEANINGS = {"F": "full", "Q": "full, quantized", "X": "extrapolated", "R": "reused"}


def plot_speedup(comparison: Comparison) -> bytes:
    """Speed-up with its interval and bound against PSNR to the full run, with the Pareto front.

    Speed-ups that are not measurable are hollow, and not on the front.
    """
    figure, axes = make_figure()
    points = [
        (row.speedup, row.to_full.psnr_db, name, row)
        for row, name in zip(comparison.rows, comparison.names, strict=True)
        if row.speedup and row.to_full.psnr_db is not None
    ]
    for speedup, psnr_db, name, row in points:
        colour = "#b3432b" if row.peer else "#1f4e79"
        fill = colour if speedup.is_measurable(row.speedup_bound) else "white"
        around = [[speedup.median - speedup.low], [speedup.high - speedup.median]]
        axes.errorbar(speedup.median, psnr_db, xerr=around, fmt="s" if row.peer else "o", color=colour, mfc=fill,
                      linewidth=1.2, capsize=3)  # fmt: skip
        axes.annotate(name, (speedup.median, psnr_db), textcoords="offset points", xytext=(6, 6), fontsize=9)
        if row.speedup_bound:
            axes.plot(row.speedup_bound, psnr_db, "|", color="#e08a1e", ms=15, mew=2.5, zorder=3)
    front = find_front([
        (speedup.median, psnr_db) for speedup, psnr_db, _, row in points if speedup.is_measurable(row.speedup_bound)
    ])  # fmt: skip
    if front:
        axes.plot(*zip(*front, strict=True), color="#888888", linewidth=1, zorder=0)
    for marker, colour, label in _KEYS:
        if marker != "s" or any(row.peer for *_, row in points):
            axes.plot([], [], marker, color=colour, mew=2 if marker == "|" else 1, label=label)
    if len(points) > sum(speedup.is_measurable(row.speedup_bound) for speedup, _, _, row in points):
        axes.plot([], [], "o", color="#1f4e79", mfc="white", label="not measurable here")
    axes.set(xlabel="speed-up to the full run of the same engine", ylabel="PSNR to that run, dB")
    axes.margins(x=0.12, y=0.12)
    if points:
        axes.legend(frameon=False, fontsize=9)
    return encode_figure(figure)


def find_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def plot_trajectories(comparison: Comparison) -> bytes:
    """Error of the latents after every step, against the full run."""
    shown = sum(bool(row.trajectory_errors and any(row.trajectory_errors)) for row in comparison.rows)
    figure, axes = make_figure(4.0 + 0.18 * max(shown - 4, 0))
    for row, name in zip(comparison.rows, comparison.names, strict=True):
        errors = row.trajectory_errors
        if errors and any(errors):
            steps = [step for step, error in enumerate(errors) if error > 0]
            style = "--" if row.peer else "-"
            axes.plot(steps, [errors[step] for step in steps], style, linewidth=1.2, label=name)
    axes.set(xlabel="step", ylabel="|latents - full| / |full|", yscale="log")
    if axes.lines:
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=4 if shown <= 4 else 1)
    return encode_figure(figure)


def plot_plans(comparison: Comparison) -> bytes:
    """The kind of each step, a strip per plan."""
    names: dict[str, str] = {}
    for row in comparison.rows:
        if not row.peer:
            names.setdefault(row.plan, f"{row.label}, {row.plan.count('F')} of {len(row.plan)}")
    figure, axes = make_figure(height=1.0 + 0.32 * len(names))
    for height, plan in enumerate(names):
        colours = [COLOURS[kind] for kind in plan]
        axes.barh([height] * len(plan), [0.9] * len(plan), left=range(len(plan)), height=0.7, color=colours)
    axes.set(yticks=range(len(names)), yticklabels=list(names.values()), xlabel="step")
    axes.invert_yaxis()
    add_legend(figure)
    return encode_figure(figure)


def add_legend(figure: Any, fontsize: int = 8) -> None:
    """Adds the legend of full, extrapolated and reused steps."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=_MEANINGS[kind]) for kind, colour in COLOURS.items()]
    figure.legend(handles=patches, loc="outside upper right", ncols=3, frameon=False, fontsize=fontsize)


def make_figure(height: float = 4.0, width: float = 6.4) -> tuple[Any, Any]:
    """A figure of this size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def encode_figure(figure: Any, dpi: int = 160) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
