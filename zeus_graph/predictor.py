"""Predictors: the rules that fill skipped steps.

Every rule is linear in outputs used at earlier steps, so a rule is data: for each
skipped step a row ``{earlier step: weight}`` over the outputs *used* there, full or
predicted. Step mode adds tensors by these rows, and folding multiplies matrices by them.

psi_t is the output at the full step t, ``before`` the step just before t, ``previous``
the full step before t, and j = 1, 2, ... counts the skipped steps after t.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.plan import StepPlan

Row = Mapping[int, float]
"""Weights over the outputs used at earlier steps, keyed by step."""

ABSCISSAE = ("index", "timestep", "sigma")


@dataclass(frozen=True)
class _Skip:
    """Where a skipped step stands: enough for every rule."""

    step: int
    letter: str
    full_steps: tuple[int, ...]  # all full steps before it, in order
    grid: Sequence[float]  # abscissa of every step

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


def _line(t: int, other: int, slope: float = 1.0) -> Row:
    return {t: 1.0 + slope, other: -slope}


def _zeus(skip: _Skip) -> Row:
    """2 psi_t - q_t: q_t is the previous full output after two or more skips, else the one before t."""
    wide = skip.t - skip.previous > 2
    return _line(skip.t, skip.previous if wide else skip.before)


def _zeus_paper(skip: _Skip) -> Row:
    """ZEUS eq. 1 and 4: 2 psi_t - psi_(t+1), one value for every extrapolated step of a block."""
    return _line(skip.t, skip.before)


def _zeus_previous_full(skip: _Skip) -> Row:
    """2 psi_t - psi_previous."""
    return _line(skip.t, skip.previous)


def _linear_grid(skip: _Skip) -> Row:
    """psi_t + rho (psi_t - before_t), rho the ratio of the grid's spacings after and before t."""
    spacing = skip.grid[skip.t] - skip.grid[skip.before]
    if spacing == 0:
        raise ZeusError(
            f"predictor linear-grid: got equal abscissae at steps {skip.before} and {skip.t}; expected distinct "
            "ones. This solver repeats timesteps: use linear-grid@index."
        )
    return _line(skip.t, skip.before, (skip.grid[skip.t + 1] - skip.grid[skip.t]) / spacing)


def _extrapolate(skip: _Skip) -> Row:
    """(j+1) psi_t - j before_t: the paper's predictor-only scheme, chained in closed form."""
    return _line(skip.t, skip.before, float(skip.j))


def _lagrange(skip: _Skip, order: int) -> Row:
    """Lagrange polynomial through the ``order`` most recent full outputs (fewer while there are fewer)."""
    nodes = skip.full_steps[-order:]
    row = {}
    for node in nodes:
        weight = 1.0
        for other in nodes:
            if other == node:
                continue
            spacing = skip.grid[node] - skip.grid[other]
            if spacing == 0:
                raise ZeusError(
                    f"predictor lagrange-{order}: got equal abscissae at steps {other} and {node}; expected distinct "
                    f"ones. This solver repeats timesteps: use lagrange-{order}@index."
                )
            weight *= (skip.grid[skip.step] - skip.grid[other]) / spacing
        row[node] = weight
    return row


_INTERLEAVED: dict[str, Callable[[_Skip], Row]] = {
    "zeus": _zeus,
    "zeus-paper": _zeus_paper,
    "zeus-previous-full": _zeus_previous_full,
    "linear-grid": _linear_grid,
}
_LAGRANGE = re.compile(r"lagrange-([234])")
PREDICTORS = (*_INTERLEAVED, "reuse", "extrapolate", "lagrange-2", "lagrange-3", "lagrange-4")
"""Names that ``Predictor.parse`` takes; linear-grid and lagrange-k also with ``@`` and an abscissa."""


@dataclass(frozen=True)
class Predictor:
    """A rule by name, or an explicit table.

    Args:
        name: One of ``PREDICTORS``, or ``table``.
        abscissa: What linear-grid and lagrange-k measure distances in: ``index``,
            ``timestep`` or ``sigma``. The others ignore it.
        table: For ``table`` only: skipped step -> weights over past full steps.
    """

    name: str = "zeus"
    abscissa: str = "index"
    table: Mapping[int, Row] | None = None

    @classmethod
    def parse(cls, text: "str | Predictor") -> "Predictor":
        """Reads a name such as ``zeus`` or ``lagrange-3@sigma``.

        Raises:
            ZeusError: The name or the abscissa is unknown.
        """
        if isinstance(text, Predictor):
            return text
        name, at, abscissa = text.partition("@")
        uses_grid = name == "linear-grid" or _LAGRANGE.fullmatch(name)
        if name not in PREDICTORS or (at and (not uses_grid or abscissa not in ABSCISSAE)):
            raise ZeusError(
                f"predictor: got {text!r}; expected one of {', '.join(PREDICTORS)} "
                f"(linear-grid and lagrange-k also with @{', @'.join(ABSCISSAE)}). Choose one of these."
            )
        return cls(name, abscissa or ("timestep" if name == "linear-grid" else "index"))

    @classmethod
    def from_table(cls, table: Mapping[int, Row]) -> "Predictor":
        """A predictor of explicit rows: skipped step -> {past full step: weight}."""
        return cls("table", table=table)

    def rows(self, plan: StepPlan, grid: Sequence[float] | None = None) -> tuple[Row | None, ...]:
        """One row per step of ``plan``: None at full steps, weights over earlier steps at skipped ones.

        Args:
            plan: The step plan. Rules of the zeus kind obey its letters (X the formula,
                R psi_t); the others fill every skipped step by their own formula.
            grid: The abscissa of every step, ``plan.num_steps`` numbers (timesteps or
                sigmas). May be omitted where ``abscissa`` is ``index``.

        Raises:
            ZeusError: The rule needs more earlier outputs than the plan has run, a
                grid that is missing, or a table that does not fit the plan.
        """
        rows: list[Row | None] = []
        for step, letter in enumerate(plan.steps):
            if letter == "F":
                rows.append(None)
                continue
            rows.append(self.row(step, letter, tuple(i for i in plan.full_steps if i < step), grid))
        return tuple(rows)

    def row(self, step: int, letter: str, full_steps: tuple[int, ...], grid: Sequence[float] | None = None) -> Row:
        """The weights of one skipped step over earlier ones, ``full_steps`` before it; errors as in ``rows``."""
        if self.abscissa == "index" or self.table is not None:
            grid = range(step + 1)
        elif grid is None or len(grid) <= step:
            raise ZeusError(
                f"predictor {self}: got {0 if grid is None else len(grid)} {self.abscissa}s; expected at least "
                f"{step + 1}. Give the schedule's {self.abscissa}s, or use @index."
            )
        skip = _Skip(step, letter, full_steps, grid)
        if self.table is not None:
            return self._table_row(skip)
        if self.name == "reuse" or (self.name in _INTERLEAVED and skip.letter == "R"):
            return {skip.t: 1.0}
        if len(skip.full_steps) < 2:
            raise ZeusError(
                f"predictor {self}: got one full step before step {skip.step}; expected two. "
                "Begin the plan with FF, or use the predictor reuse."
            )
        if self.name == "extrapolate":
            return _extrapolate(skip)
        if match := _LAGRANGE.fullmatch(self.name):
            return _lagrange(skip, int(match[1]))
        return _INTERLEAVED[self.name](skip)

    def _table_row(self, skip: _Skip) -> Row:
        row = (self.table or {}).get(skip.step)
        if not row:
            raise ZeusError(
                f"predictor table: got no row for the skipped step {skip.step}; expected one. "
                "The table belongs to another plan: calibrate this one."
            )
        if wrong := sorted(set(row) - set(skip.full_steps)):
            raise ZeusError(
                f"predictor table: got weights on steps {wrong} for step {skip.step}; expected earlier full steps "
                f"{list(skip.full_steps)}. The table belongs to another plan: calibrate this one."
            )
        return dict(row)

    def to_json(self) -> dict:
        """The predictor as JSON data; ``from_json`` reads it back."""
        if self.table is None:
            return {"name": str(self)}
        return {"name": "table", "rows": {str(i): {str(k): w for k, w in row.items()} for i, row in self.table.items()}}

    @classmethod
    def from_json(cls, data: Mapping) -> "Predictor":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No predictor, or an unknown one.
        """
        try:
            if data["name"] != "table":
                return cls.parse(data["name"])
            rows = {int(i): {int(k): float(w) for k, w in row.items()} for i, row in data["rows"].items()}
            return cls.from_table(rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ZeusError(
                f"predictor: got JSON that does not fit ({error!r}); expected a predictor. "
                "Write it with Predictor.to_json()."
            ) from error

    def __str__(self) -> str:
        uses_grid = self.name == "linear-grid" or _LAGRANGE.fullmatch(self.name)
        return f"{self.name}@{self.abscissa}" if uses_grid else self.name


def choose_predictor(plan: StepPlan, asked: "str | Predictor | None") -> Predictor:
    """The rule that is asked for; else the plan's, else ``zeus``.

    Raises:
        ZeusError: An unknown rule, or another one than that of a calibrated plan.
    """
    rule = None if asked is None else Predictor.parse(asked)
    if plan.predictor is not None and rule not in (None, plan.predictor):
        raise ZeusError(
            f"predictor: got {rule} beside a calibrated plan, which has its own ({plan.predictor}); expected one of "
            "the two. Leave the predictor out, or give the plan's letters alone."
        )
    return rule or plan.predictor or Predictor()


def last_uses(rows: Sequence[Row | None]) -> dict[int, int]:
    """Step -> the last later step whose row reads its output; absent where nothing reads it."""
    return {source: step for step, row in enumerate(rows) for source in row or ()}
