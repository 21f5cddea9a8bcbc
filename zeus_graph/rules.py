"""The formulas of the rules that fill skipped steps, each a row of weights on outputs used before.

psi_t is the output at the full step t, ``before`` the step just before t, ``previous`` the full step before t, and
j = 1, 2, ... counts the skipped steps after t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.row_table import Row, Source


@dataclass(frozen=True)
class Skip:
    """The place of a skipped step: all that a rule reads."""

    step: int
    letter: str
    full_steps: Sequence[int]  # all full steps before it, in order
    grid: Sequence[Any]  # abscissa of every step
    count: int  # evaluations of the whole trajectory

    @property
    def t(self) -> int:
        return self.full_steps[-1]

    @property
    def j(self) -> int:
        return self.step - self.t

    @property
    def before(self) -> int:
        return self.t - 1

    @property
    def previous(self) -> int:
        return self.full_steps[-2]

    def measure(self, rule: str, start: int, end: int) -> float:
        """The distance of two steps on the grid; raises ZeusError where it is zero."""
        spacing = self.grid[end] - self.grid[start]
        if spacing == 0:
            raise ZeusError(
                f"predictor {rule}: got equal abscissae at steps {start} and {end}; expected distinct ones. This "
                f"solver repeats timesteps: use {rule}@index."
            )
        return spacing


def draw_line(t: int, other: int, slope: float = 1.0) -> Row:
    """psi_t + slope (psi_t - psi_other)."""
    return {t: 1.0 + slope, other: -slope}


def add_terms(*terms: tuple[Source, float]) -> Row:
    """The row of a sum whose terms may read the same output twice; zeros are left out."""
    row: dict[Source, float] = {}
    for source, weight in terms:
        row[source] = row.get(source, 0.0) + weight
    return {source: weight for source, weight in row.items() if weight}


def _zeus(skip: Skip) -> Row:
    """2 psi_t - q_t: q_t is the previous full output after two or more skips, else the one before t."""
    wide = skip.t - skip.previous > 2
    return draw_line(skip.t, skip.previous if wide else skip.before)


def _zeus_paper(skip: Skip) -> Row:
    """ZEUS eq. 1 and 4: 2 psi_t - psi_(t+1), one value for every extrapolated step of a block."""
    return draw_line(skip.t, skip.before)


def _zeus_previous_full(skip: Skip) -> Row:
    """2 psi_t - psi_previous."""
    return draw_line(skip.t, skip.previous)


def _linear_grid(skip: Skip) -> Row:
    """psi_t + rho (psi_t - before_t), rho the ratio of the grid's spacings after and before t."""
    spacing = skip.measure("linear-grid", skip.before, skip.t)
    return draw_line(skip.t, skip.before, (skip.grid[skip.t + 1] - skip.grid[skip.t]) / spacing)


def extrapolate(skip: Skip) -> Row:
    """(j+1) psi_t - j before_t: the paper's predictor-only scheme, chained in closed form."""
    return draw_line(skip.t, skip.before, float(skip.j))


def _lagrange(skip: Skip, order: int) -> Row:
    """Lagrange polynomial through the ``order`` most recent full outputs (fewer while there are fewer)."""
    return _interpolate(skip, skip.full_steps[-order:], f"lagrange-{order}")


def _local(skip: Skip, order: int) -> Row:
    """Lagrange polynomial through the outputs used at t and the ``order - 1`` steps before it.

    It is the chained one through the outputs used at the last ``order`` steps, in closed form: a prediction lies on the
    polynomial through the outputs that made it.
    """
    return _interpolate(skip, range(max(skip.t - order + 1, skip.full_steps[0]), skip.t + 1), f"local-{order}")


def _interpolate(skip: Skip, nodes: Sequence[int], rule: str) -> Row:
    row: dict[Source, float] = {}
    for node in nodes:
        weight = 1.0
        for other in nodes:
            if other != node:
                spacing = skip.measure(rule, other, node)
                weight *= (skip.grid[skip.step] - skip.grid[other]) / spacing
        row[node] = weight
    return row


INTERLEAVED: dict[str, Callable[[Skip], Row]] = {
    "zeus": _zeus,
    "zeus-paper": _zeus_paper,
    "zeus-previous-full": _zeus_previous_full,
    "linear-grid": _linear_grid,
}
"""Rules that extrapolate where a plan has X; at R they reuse psi_t."""

POLYNOMIALS: dict[str, Callable[[Skip], Row]] = {
    **{f"lagrange-{order}": partial(_lagrange, order=order) for order in (2, 3, 4)},
    **{f"local-{order}": partial(_local, order=order) for order in (1, 2, 3)},
}
"""Rules that fill every skipped step by their formula."""
