"""The formula of every rule, written out: what stands in for the output at a skipped step of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zeus_trt.zeus_graph import Plan


@dataclass
class Run:
    """A run so far: what a formula reads. Entries of ``y``, ``x`` and ``m`` are arrays or tensors of one shape.

    Args:
        plan: Its plan.
        time: Timestep of every evaluation.
        sigma: Noise level of every evaluation.
        kind: What the denoiser predicts: ``flow``, ``epsilon`` or ``v_prediction``.
        y: The outputs used at the steps so far.
        x: The samples before each step, the skipped one too.
        m: The model inputs, alike.
    """

    plan: Plan
    time: Sequence[float] = ()
    sigma: Sequence[float] = ()
    kind: str = ""
    y: list[Any] = field(default_factory=list)
    x: list[Any] = field(default_factory=list)
    m: list[Any] = field(default_factory=list)

    @property
    def full(self) -> list[int]:
        """Full steps so far."""
        return [step for step in self.plan.full_steps if step < len(self.y)]


Formula = Callable[[Run, list[int], int], Any]
"""Of the run, its full steps so far, and the skipped step i."""


def zeus(run, full, i):
    y, t, p = run.y, full[-1], full[-2]
    return 2 * y[t] - (y[p] if t - p - 1 >= 2 else y[t - 1])


def zeus_paper(run, full, i):
    return 2 * run.y[full[-1]] - run.y[full[-1] - 1]


def zeus_previous_full(run, full, i):
    return 2 * run.y[full[-1]] - run.y[full[-2]]


def linear_grid(run, full, i):
    y, s, t = run.y, run.time, full[-1]
    return y[t] + (s[t + 1] - s[t]) / (s[t] - s[t - 1]) * (y[t] - y[t - 1])


def reuse(run, full, i):
    return run.y[full[-1]]


def extrapolate(run, full, i):
    t = full[-1]
    return run.y[t] + (i - t) * (run.y[t] - run.y[t - 1])


def interpolate(nodes, values, at):
    """The polynomial through values at nodes, by Neville's algorithm."""
    values = list(values)
    for level in range(1, len(nodes)):
        for k in range(len(nodes) - level):
            a, b = nodes[k], nodes[k + level]
            values[k] = ((at - b) * values[k] + (a - at) * values[k + 1]) / (a - b)
    return values[0]


def lagrange(order: int, grid: str = "index") -> Formula:
    def formula(run, full, i):
        place = getattr(run, grid, range(len(run.plan)))
        nodes = full[-order:]
        return interpolate([place[k] for k in nodes], [run.y[k] for k in nodes], place[i])

    return formula


def local(order: int) -> Formula:
    def formula(run, full, i):
        nodes = range(max(full[-1] - order + 1, 0), full[-1] + 1)
        return interpolate(nodes, [run.y[k] for k in nodes], i)

    return formula


def damped(run, full, i):
    y, t, p = run.y, full[-1], full[-2]
    return y[t] + 0.5 * (y[t] - y[p])


def adams_bashforth_2(run, full, i):
    return 3 / 2 * run.y[i - 1] - 1 / 2 * run.y[i - 2]


def adams_bashforth_3(run, full, i):
    if i < 3:
        return adams_bashforth_2(run, full, i)
    return 23 / 12 * run.y[i - 1] - 16 / 12 * run.y[i - 2] + 5 / 12 * run.y[i - 3]


def hermite(run, full, i):
    y, t, p, s = run.y, full[-1], full[-2], 0.5
    x = s * (i - t)
    first = (y[t] - y[p]) / (t - p)
    value = y[t] + s * (2 * x) * first
    if len(full) > 2:
        before = (y[p] - y[full[-3]]) / (p - full[-3])
        value = value + s**2 / 2 * (4 * x**2 - 2) * (first - before) / (t - p)
    return value


def foca(run, full, i):
    y, t, p = run.y, full[-1], full[-2]
    forecast = 2 * y[i - 1] - y[i - 2]
    return y[t] + (i - t) / 2 * ((y[t] - y[p]) + (forecast - y[i - 1]))


def chebyshev(run, full, i):
    y, t, p, full, half = run.y, full[-1], full[-2], full[-10:], len(run.plan) / 2

    def polynomials(step):
        x = (step - half) / half
        return [1, x, 2 * x**2 - 1, 4 * x**3 - 3 * x, 8 * x**4 - 8 * x**2 + 1]

    design = np.array([polynomials(step) for step in full])
    squared = np.vstack([design, np.sqrt(0.1) * np.eye(5)])  # ridge as least squares with five more rows
    outputs = np.array([np.asarray(y[k]) for k in full])
    known = np.vstack([outputs.reshape(len(full), -1), np.zeros((5, outputs[0].size))])
    fit = np.linalg.lstsq(squared, known, rcond=None)[0]
    return 0.5 * np.asarray(y[t] + (y[t] - y[p]) / 2) + 0.5 * (polynomials(i) @ fit).reshape(outputs[0].shape)


def x0(run, full, i):
    """The output that says the clean sample of step t again."""
    t = full[-1]
    clean = read_clean(run.kind, run.sigma[t], run.m[t], run.y[t])
    if run.kind == "flow":
        return (run.m[i] - clean) / run.sigma[i]
    if run.kind == "epsilon":  # m = (x0 + sigma noise) / sqrt(1 + sigma^2)
        return (np.hypot(1, run.sigma[i]) * run.m[i] - clean) / run.sigma[i]
    angle = np.arctan(run.sigma[i])  # x0 = cos m - sin v
    return (np.cos(angle) * run.m[i] - clean) / np.sin(angle)


def read_clean(kind: str, sigma: float, m, output):
    """x0, by the definition of what is predicted."""
    if kind == "flow":
        return m - sigma * output
    if kind == "epsilon":
        return np.hypot(1, sigma) * m - sigma * output
    return np.cos(np.arctan(sigma)) * m - np.sin(np.arctan(sigma)) * output


def residual(run, full, i):
    return run.m[i] + (run.y[full[-1]] - run.m[full[-1]])


def mean_velocity(run, full, i):
    y, x, s, p = run.y, run.x, run.sigma, full[-2]
    average = (x[i] - x[p]) / (s[i] - s[p])
    product = (y[p] - average) / (s[i] - s[p])
    return y[i - 1] - product * (s[i + 1] - s[i])


INTERLEAVED: dict[str, Formula] = {
    "zeus": zeus,
    "zeus-paper": zeus_paper,
    "zeus-previous-full": zeus_previous_full,
    "linear-grid": linear_grid,
}
"""At X; at R they are ``reuse``."""

OVER_OUTPUTS: dict[str, Formula] = {
    "reuse": reuse,
    "extrapolate": extrapolate,
    **{f"lagrange-{order}": lagrange(order) for order in (2, 3, 4)},
    **{f"lagrange-{order}@sigma": lagrange(order, "sigma") for order in (2, 3, 4)},
    "lagrange-2@timestep": lagrange(2, "time"),
    **{f"local-{order}": local(order) for order in (1, 2, 3)},
    "damped": damped,
    "adams-bashforth-2": adams_bashforth_2,
    "adams-bashforth-3": adams_bashforth_3,
    "hermite": hermite,
    "foca": foca,
    "chebyshev": chebyshev,
}

OVER_SAMPLES: dict[str, Formula] = {"x0": x0, "residual": residual, "mean-velocity": mean_velocity}

FORMULAS: dict[str, Formula] = INTERLEAVED | OVER_OUTPUTS | OVER_SAMPLES


def fill(name: str, run: Run) -> Any:
    """What the rule puts in the place of the next output of a run."""
    step = len(run.y)
    is_reused = name in INTERLEAVED and run.plan.steps[step] == "R"
    return (reuse if is_reused else FORMULAS[name])(run, run.full, step)
