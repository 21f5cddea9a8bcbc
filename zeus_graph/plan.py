"""Step plans: which evaluations of a trajectory call the denoiser."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_STEPS, check_count, read_indices, show
from zeus_trt.zeus_graph.predictor import Predictor
from zeus_trt.zeus_graph.window import WINDOWS, Window, place_window

if TYPE_CHECKING:
    from zeus_trt.zeus_graph.solver_program import SolverProgram

Source = Literal["written", "uniform", "spread", "prior", "calibrated"]
"""Where a plan came from."""

FULL = "FQ"
"""The letters of full steps."""

PRESETS = {"medium": 2, "fast": 3, "turbo": 4}
"""Name of a preset -> ratio r, the number of skipped steps after each full one."""

_FORMAT = 1
_ADVICE = "Write it with Plan.to_json()."


@dataclass(frozen=True)
class _File:
    """The fields of a file, as ``Plan.to_json`` and ``zeus-trt plan --json`` write them."""

    format: int
    steps: str
    full_steps: tuple[int, ...] | None = None
    nfe: int | None = None
    predictor: dict[str, Any] | None = None
    source: Source = "written"
    program: dict[str, Any] | None = None


@dataclass(frozen=True)
class Plan:
    """What happens at each evaluation of the denoiser, from noise to data.

    Args:
        steps: One letter per evaluation: ``F`` full, ``Q`` full by the quantized engine, ``X`` extrapolated,
            ``R`` reused.
            Case and surrounding blanks do not matter.
        predictor: The rule that fills its skipped steps, or its name; with None it is ``zeus``, unless whoever runs the
            plan asks for another.
        source: Where the plan came from. Plans of equal steps and predictor are equal, whatever their source.
        calibration: The ``CalibratedPlan`` that it is part of, if any.

    Raises:
        ZeusError: The plan is no text, is empty or longer than ``MAX_STEPS``, has another letter, skips its last
            step, or extrapolates before two full steps have run; or an unknown predictor or source.
    """

    steps: str
    predictor: Predictor | None = field(default=None, hash=False)
    source: Source = field(default="written", compare=False)
    calibration: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.steps, str):
            raise ZeusError(
                f"plan: got {type(self.steps).__name__}; expected text, a letter per step such as FFXRF. Change it."
            )
        if len(self.steps) > MAX_STEPS:
            raise ZeusError(f"plan: got {len(self.steps)} letters; expected {MAX_STEPS} at most. Write fewer.")
        steps = self.steps.strip().upper()
        object.__setattr__(self, "steps", steps)
        unknown = sorted(set(steps) - set("FQXR"))
        if not steps or unknown:
            raise ZeusError(
                f"plan: got {', '.join(unknown[:9]) or 'no steps'}; expected the letters F (full), Q (quantized), X "
                "(extrapolate) and R (reuse). Write one letter per step, such as FFXRF."
            )
        if steps[0] not in FULL:
            raise ZeusError(
                f"plan: got {steps[0]} as the first step; expected F. Nothing can be predicted before the denoiser ran."
            )
        if steps[-1] not in FULL:
            raise ZeusError(
                f"plan: got {steps[-1]} as the last step; expected F. The last step sets the finest detail: run it."
            )
        first = steps.find("X")
        if first >= 0 and sum(letter in FULL for letter in steps[:first]) < 2:
            raise ZeusError(
                f"plan: got X at step {first} after one full step; expected two full steps before the first X. "
                "Extrapolation needs two outputs: begin with FF."
            )
        if self.predictor is not None:
            object.__setattr__(self, "predictor", Predictor.parse(self.predictor))
        if self.source not in (sources := get_args(Source)):
            raise ZeusError(f"source: got {show(self.source)}; expected one of {', '.join(sources)}. Change it.")

    @classmethod
    def uniform(cls, length: int, ratio: int, window: Window = WINDOWS["default"]) -> "Plan":
        """Blocks of one full and ``ratio`` skipped steps inside a window (ZEUS, 1:r).

        Args:
            length: Evaluations of the whole trajectory, 1 to ``MAX_STEPS``.
            ratio: Skipped steps after each full one; 0 makes every step full.
            window: Fractions of the steps that stay full at the start and at the
                end, rounded up, or ``Ends``. At least the first two and the last step are full.

        Raises:
            ZeusError: A number or a fraction out of range.
        """
        length = check_count("length", length, 1, MAX_STEPS)
        ratio = check_count("ratio", ratio, 0)
        low, high = place_window(window, length)
        full = (i < low or i >= high or (i - low) % (ratio + 1) == 0 for i in range(length))
        return cls(_alternate(tuple(full)), source="uniform")

    @classmethod
    def spread(cls, length: int, nfe: int) -> "Plan":
        """The first two steps and the last are full, the other full steps evenly between them.

        Args:
            length: Evaluations of the whole trajectory.
            nfe: Number of full steps, from ``min(3, length)`` to ``length``.

        Raises:
            ZeusError: A number out of range.
        """
        length = check_count("length", length, 1, MAX_STEPS)
        nfe, least = check_count("nfe", nfe, 0), min(3, length)
        if not least <= nfe <= length:
            raise ZeusError(
                f"nfe: got {show(nfe)}; expected {least}..{length} for {length} steps. "
                "The first two steps and the last are always full."
            )
        last = length - 1
        even = (1 + round(k * (last - 1) / max(nfe - 2, 1)) for k in range(nfe - 1))
        return replace(cls.from_full_steps(length, [0, *even]), source="spread")

    @classmethod
    def prior(cls, solver: "SolverProgram", nfe: int) -> "Plan":
        """The plan of ``nfe`` full steps that does best on the models of the prior: no model runs for it.

        Args:
            solver: The traced solver.
            nfe: Number of full steps.

        Raises:
            ZeusError: An impossible number of full steps.
        """
        from zeus_trt.zeus_graph.prior import make_prior_plan

        return make_prior_plan(solver, nfe)

    @classmethod
    def from_full_steps(cls, length: int, full_steps: Sequence[int]) -> "Plan":
        """Full at the given indices; the skipped steps of every gap alternate X, R, X, ...

        Raises:
            ZeusError: A number of steps out of range, or indices outside of it.
        """
        length = check_count("length", length, 1, MAX_STEPS)
        full = read_indices(full_steps, length)
        return cls(_alternate(tuple(i in full for i in range(length))))

    def __len__(self) -> int:
        """Evaluations of the whole trajectory, full and skipped."""
        return len(self.steps)

    @property
    def full_steps(self) -> tuple[int, ...]:
        """Indices of the full steps."""
        return tuple(i for i, letter in enumerate(self.steps) if letter in FULL)

    @property
    def nfe(self) -> int:
        """Number of full steps, quantized or not: how often the denoiser runs."""
        return len(self.full_steps)

    @property
    def is_plain(self) -> bool:
        """Whether every step is ``F``: the plain loop."""
        return set(self.steps) == {"F"}

    def cost(self, quantized: float) -> float:
        """The calls in units of one by the full engine, where a call by the quantized one costs ``quantized``."""
        return self.steps.count("F") + quantized * self.steps.count("Q")

    def with_quantized(self, steps: Iterable[int]) -> "Plan":
        """The plan with the full steps among ``steps`` run by the quantized engine, and all others by the full one."""
        chosen = read_indices(steps, len(self))
        letters = ("FQ"[i in chosen] if letter in FULL else letter for i, letter in enumerate(self.steps))
        return replace(self, steps="".join(letters))

    @property
    def speedup_bound(self) -> float:
        """``len(plan) / nfe``: no run of this plan can be faster than this against all-full by the same engine."""
        return len(self) / self.nfe

    def is_full(self, step: int) -> bool:
        """Whether the denoiser runs at ``step``."""
        return self.steps[step] in FULL

    @property
    def rule(self) -> Predictor:
        """The rule that fills skipped steps: the plan's predictor, by default ``zeus``."""
        return self.predictor or Predictor()

    def with_predictor(self, predictor: str | Predictor | None) -> "Plan":
        """The plan with this rule; the plan itself for None.

        Raises:
            ZeusError: An unknown rule, or another one than the plan's own.
        """
        if predictor is None:
            return self
        asked = Predictor.parse(predictor)
        if self.predictor not in (None, asked):
            raise ZeusError(
                f"predictor: got {asked} beside a calibrated plan, which has its own ({self.predictor}); expected one "
                "of the two. Leave the predictor out, or give the plan's letters alone."
            )
        return replace(self, predictor=asked)

    def with_full(self, step: int) -> "Plan":
        """The plan with a skipped step made full; the skipped steps after it alternate from X again.

        Where the predictor is a table they stay as they are, since its rows were made for them.
        """
        if step >= len(self) or self.is_full(step):
            return self
        end = next(later for later in self.full_steps if later > step)
        has_table = self.predictor is not None and self.predictor.table is not None
        rest = self.steps[step + 1 : end] if has_table else "".join("XR"[i % 2] for i in range(end - step - 1))
        return replace(self, steps=f"{self.steps[:step]}F{rest}{self.steps[end:]}")

    def check_length(self, length: int) -> "Plan":
        """Returns the plan, or raises ZeusError when it is not ``length`` long."""
        if len(self) != length:
            raise ZeusError(
                f"plan: got {len(self)} steps; expected {length}, the evaluations of this schedule. "
                "Write a plan of that length, or change the number of steps."
            )
        return self

    def describe(self) -> str:
        """The plan, its full steps, NFE and speed-up bound, a line each."""
        quantized = [i for i, letter in enumerate(self.steps) if letter == "Q"]
        said = f"quantized      {_join_ranges(quantized)}\n" if quantized else ""
        return (
            f"{self.steps}\n"
            f"full steps     {_join_ranges(self.full_steps)}\n"
            f"{said}"
            f"NFE            {self.nfe} of {len(self)}\n"
            f"speed-up bound {self.speedup_bound:.2f}x"
        )

    def to_json(self) -> dict:
        """The plan as JSON data; ``from_json`` reads it back."""
        own = {} if self.predictor is None else {"predictor": self.predictor.to_json()}
        source = {} if self.source == "written" else {"source": self.source}
        return {"format": _FORMAT, "steps": self.steps, **source, **own}

    @classmethod
    def from_json(cls, data: dict) -> "Plan":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No plan, or one of a format this version does not know.
        """
        strict_json.check_format(data, _FORMAT, "plan", advice="write the plan again.")
        file = strict_json.build(data, _File, "plan", advice=_ADVICE)
        predictor = None if file.predictor is None else Predictor.from_json(file.predictor)
        plan = cls(file.steps, predictor, file.source)
        if file.full_steps not in (None, plan.full_steps) or file.nfe not in (None, plan.nfe):
            raise ZeusError(
                f"plan: got full_steps or nfe that are not those of {plan}; expected the same. Leave them out."
            )
        return plan

    def __str__(self) -> str:
        return self.steps


def _alternate(full: Sequence[bool]) -> str:
    letters, skipped = [], 0
    for is_full in full:
        skipped = 0 if is_full else skipped + 1
        letters.append("F" if is_full else "RX"[skipped % 2])
    return "".join(letters)


def _join_ranges(steps: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for step in steps:
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
