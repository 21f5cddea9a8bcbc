"""Predictors: the rules that fill skipped steps.

Every rule is linear in outputs used at earlier steps and in samples, so a rule is data: for each
skipped step a row ``{earlier step: weight}`` over the outputs *used* there, full or
predicted; some also weigh samples, ``{Sample(step): weight}``. Step mode adds tensors by these rows, and folding
multiplies matrices by them.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import show
from zeus_trt.zeus_graph.open_list import find_outside
from zeus_trt.zeus_graph.published_rules import CHEBYSHEV_MEMORY, PUBLISHED
from zeus_trt.zeus_graph.row_table import Row, Sample, Source, parse_table, read_table, step_of, write_table
from zeus_trt.zeus_graph.rules import INTERLEAVED, POLYNOMIALS, Skip, extrapolate
from zeus_trt.zeus_graph.sample_rules import SAMPLE_RULES

if TYPE_CHECKING:
    from zeus_trt.zeus_graph.plan import Plan

ABSCISSAE = ("index", "timestep", "sigma")

_ADVICE = "Write it with Predictor.to_json()."


@dataclass(frozen=True)
class _File:
    """The fields of a file, as ``Predictor.to_json`` writes them."""

    name: str
    rows: dict[int, dict[str, float]] | None = None


PREDICTORS = (*INTERLEAVED, "reuse", "extrapolate", *POLYNOMIALS, *PUBLISHED, *SAMPLE_RULES)
"""Names that ``Predictor.parse`` takes; linear-grid, lagrange-k and local-k also with ``@`` and an abscissa."""

_NEEDS_ONE = ("reuse", "local-1", "x0", "residual")  # full steps; the other rules need two


@dataclass(frozen=True)
class Predictor:
    """A rule by name, an explicit table, or a rule of another package.

    Args:
        name: One of ``PREDICTORS``, or ``table``; any name with ``rule``.
        abscissa: What linear-grid, lagrange-k and local-k measure distances in: ``index``,
            ``timestep`` or ``sigma``. The others ignore it; of rules over samples it is ``noise``.
        table: For ``table`` only: skipped step -> weights over past full steps, and over samples; a copy is kept.
        rule: A function from the place of a skipped step (``rules.Skip``) to its row. Its attributes, where it has
            them, say what it reads: ``memory`` the number of last full steps, ``reach`` that of other steps before, 4
            and 3 by default, and ``abscissa`` what it measures in, ``index`` by default.

    Raises:
        ZeusError: The name or the abscissa is unknown, or the table has weights that are not finite, or on steps
            that do not come before.
    """

    name: str = "zeus"
    abscissa: str = "index"
    table: Mapping[int, Row] | None = None
    rule: Callable[[Skip], Row] | None = None

    def __post_init__(self) -> None:
        if self.rule is not None:
            object.__setattr__(self, "abscissa", getattr(self.rule, "abscissa", "index"))
            return
        if not isinstance(self.name, str) or self.name not in (*PREDICTORS, "table"):
            raise _refuse(self.name)
        if self.name in SAMPLE_RULES:
            object.__setattr__(self, "abscissa", "noise")
        elif self.abscissa not in ABSCISSAE:
            raise ZeusError(
                f"abscissa: got {show(self.abscissa)}; expected one of {', '.join(ABSCISSAE)}. Choose one of these."
            )
        if (self.name == "table") != (self.table is not None):
            found = "a table" if self.table is not None else "no table"
            raise ZeusError(
                f"predictor {self.name}: got {found}; expected rows for the predictor table, and for no other. "
                "Use Predictor.from_table()."
            )
        if self.table is not None:
            object.__setattr__(self, "table", read_table(self.table))

    @classmethod
    def parse(cls, text: "str | Predictor | Callable[[Skip], Row]") -> "Predictor":
        """Reads a name such as ``zeus`` or ``lagrange-3@sigma``, that of an entry point, or a rule itself.

        Raises:
            ZeusError: The name or the abscissa is unknown.
        """
        if isinstance(text, Predictor):
            return text
        if callable(text):
            return cls(getattr(text, "__name__", type(text).__name__), rule=text)
        if not isinstance(text, str):
            raise _refuse(text)
        if text not in PREDICTORS and (rule := find_outside("predictor", text)):
            return cls(text, rule=rule)
        name, at, abscissa = text.partition("@")
        if name not in PREDICTORS or (at and (not _uses_grid(name) or abscissa not in ABSCISSAE)):
            raise _refuse(text)
        return cls(name, abscissa or ("timestep" if name == "linear-grid" else "index"))

    @classmethod
    def from_table(cls, table: Mapping[int, Row]) -> "Predictor":
        """A predictor of explicit rows: skipped step -> {past full step: weight}."""
        return cls("table", table=table)

    @property
    def reach(self) -> int:
        """How many steps just before the last full one, or before the skipped one, it reads besides full steps."""
        if self.rule is not None:
            return getattr(self.rule, "reach", 3)
        return {"local-3": 2, "adams-bashforth-2": 2, "foca": 2, "adams-bashforth-3": 3}.get(self.name, 1)

    @property
    def memory(self) -> int:
        """How many of the last full steps it reads, at most."""
        return CHEBYSHEV_MEMORY if self.name == "chebyshev" else getattr(self.rule, "memory", 4)

    @property
    def reads_samples(self) -> bool:
        """Whether rows may weigh samples."""
        if self.table is None:
            return self.abscissa == "noise"
        return any(isinstance(source, Sample) for row in self.table.values() for source in row)

    def rows(self, plan: "Plan", grid: Sequence[Any] | None = None) -> tuple[Row | None, ...]:
        """One row per step of ``plan``: None at full steps, weights over earlier steps at skipped ones.

        Args:
            plan: The step plan. Rules of the zeus kind obey its letters (X the formula,
                R psi_t); the others fill every skipped step by their own formula.
            grid: The abscissa of every step, ``len(plan)`` numbers (timesteps or
                sigmas; ``Noise`` for rules over samples). May be omitted where ``abscissa`` is ``index``.

        Raises:
            ZeusError: The rule needs more earlier outputs than the plan has run, a
                grid that is missing, or a table that does not fit the plan.
        """
        rows: list[Row | None] = []
        full_steps: list[int] = []
        for step, letter in enumerate(plan.steps):
            if letter in "FQ":
                full_steps.append(step)
                rows.append(None)
            else:
                rows.append(self.row(step, letter, full_steps, len(plan), grid))
        return tuple(rows)

    def row(
        self, step: int, letter: str, full_steps: Sequence[int], count: int, grid: Sequence[Any] | None = None
    ) -> Row:
        """The weights of one skipped step of ``count``, ``full_steps`` before it; errors as in ``rows``."""
        if self.abscissa == "index" or self.table is not None:
            grid = range(step + 1)
        elif grid is None or len(grid) <= step:
            raise ZeusError(
                f"predictor {self}: got {0 if grid is None else len(grid)} {self.abscissa}s; expected at least "
                f"{step + 1}. Give the schedule's {self.abscissa}s, or choose a rule that needs none, such as zeus."
            )
        skip = Skip(step, letter, full_steps, grid, count)
        if self.table is not None:
            return self._table_row(skip)
        if self.rule is not None:
            return read_table({step: self.rule(skip)})[step]
        if self.name == "reuse" or (self.name in INTERLEAVED and skip.letter == "R"):
            return {skip.t: 1.0}
        if len(skip.full_steps) < 2 and self.name not in _NEEDS_ONE:
            raise ZeusError(
                f"predictor {self}: got one full step before step {skip.step}; expected two. "
                "Begin the plan with FF, or use the predictor reuse."
            )
        if self.name == "extrapolate":
            return extrapolate(skip)
        return (INTERLEAVED | POLYNOMIALS | PUBLISHED | SAMPLE_RULES)[self.name](skip)

    def _table_row(self, skip: Skip) -> Row:
        row = (self.table or {}).get(skip.step)
        if not row:
            raise ZeusError(
                f"predictor table: got no row for the skipped step {skip.step}; expected one. "
                "The table belongs to another plan: calibrate this one."
            )
        read = {step_of(source) for source in row if source != Sample(skip.step)}
        if wrong := sorted(source for source in read if not _contains(skip.full_steps, source)):
            raise ZeusError(
                f"predictor table: got weights on steps {wrong} for step {skip.step}; expected earlier full steps "
                f"{list(skip.full_steps)}. The table belongs to another plan: calibrate this one."
            )
        return dict(row)

    def to_json(self) -> dict:
        """The predictor as JSON data; ``from_json`` reads it back."""
        if self.table is None:
            return {"name": str(self)}
        return {"name": "table", "rows": write_table(self.table)}

    @classmethod
    def from_json(cls, data: Any) -> "Predictor":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No predictor, or an unknown one.
        """
        file = strict_json.build(data, _File, "predictor", advice=_ADVICE)
        return cls.parse(file.name) if file.rows is None else cls(file.name, table=parse_table(file.rows))

    def __str__(self) -> str:
        return f"{self.name}@{self.abscissa}" if _uses_grid(self.name) and self.rule is None else self.name


def _uses_grid(name: str) -> bool:
    return name == "linear-grid" or name in POLYNOMIALS


def _refuse(found: Any) -> ZeusError:
    return ZeusError(
        f"predictor: got {show(found)}; expected one of {', '.join(PREDICTORS)} "
        f"(linear-grid, lagrange-k and local-k also with @{', @'.join(ABSCISSAE)}). Choose one of these."
    )


def _contains(ordered: Sequence[int], step: int) -> bool:
    place = bisect_left(ordered, step)
    return place < len(ordered) and ordered[place] == step


def last_uses(rows: Sequence[Row | None]) -> dict[Source, int]:
    """Source -> the last step whose row reads it; absent where nothing does."""
    return {source: step for step, row in enumerate(rows) for source in row or ()}
