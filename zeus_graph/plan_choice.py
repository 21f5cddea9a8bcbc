"""The plan of a run, from the few words in which a caller asks for it."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.counts import check_count, show
from zeus_trt.zeus_graph.plan import PRESETS, Plan
from zeus_trt.zeus_graph.predictor import Predictor
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.step_policy import find_step_policy, read_step_policy
from zeus_trt.zeus_graph.trace import UntraceableError
from zeus_trt.zeus_graph.window import WINDOWS, Window, read_window

logger = logging.getLogger(__name__)
DEFAULT_RATIO = 3
_PRIOR = "prior:"

Planner = Callable[[int], Plan]
"""Makes the plan for a number of evaluations."""


@dataclass(frozen=True)
class PriorPlanner:
    """Makes the plan of the prior for a solver.

    Args:
        budget: Full steps, or the name of the preset that has as many.

    Raises:
        ZeusError: Another budget.
    """

    budget: str

    def __post_init__(self) -> None:
        if self.budget not in PRESETS and not (self.budget.isascii() and self.budget.isdigit()):
            raise ZeusError(
                f"plan: got {show(_PRIOR + self.budget)}; expected {_PRIOR} and a number of full steps, or one of "
                f"{', '.join(PRESETS)}. Write it like {_PRIOR}22."
            )

    def __call__(self, count: int) -> Plan:
        raise ZeusError(
            f"plan: got {_PRIOR}{self.budget} for {count} evaluations of no known solver; expected one. A plan of the "
            "prior is made for a solver: give it, or write another plan."
        )

    def count_full_steps(self, count: int) -> int:
        """The budget in full steps of ``count`` evaluations."""
        if self.budget in PRESETS:
            return Plan.uniform(count, PRESETS[self.budget]).nfe
        return check_count("plan: prior", int(self.budget[:9]), min(3, count), count)


def lay_plan(planner: Planner, count: int, program: Callable[[], SolverProgram]) -> Plan:
    """The plan for ``count`` evaluations of a solver, which is only traced where the plan depends on it.

    Raises:
        ZeusError: As the planner.
    """
    if not isinstance(planner, PriorPlanner):
        return planner(count)
    nfe = planner.count_full_steps(count)
    try:
        return Plan.prior(program(), nfe)
    except UntraceableError as error:
        logger.warning("no prior: %s The plan is evenly spread, with the rule zeus", error)
        return Plan.spread(count, nfe)


def load_plan(source: str | os.PathLike | Plan | CalibratedPlan, num_steps: int | None = None) -> Plan:
    """Reads a plan in whatever form a user gives it; a calibrated one brings its predictor and its calibration.

    It belongs to the model, the solver and the number of steps that it was calibrated for: its length is checked where
    it runs, and ``plan.calibration.check(...)`` checks the rest.

    Args:
        source: Letters such as ``FFXRF``; a file that ``zeus-trt calibrate`` wrote, or one with the JSON of a
            ``Plan``; the ``config.json`` of a transformer with a step policy (``read_step_policy``); the name of a
            preset: ``medium``, ``fast`` or ``turbo``; or a plan.
        num_steps: Evaluations of the denoiser, which a preset and a policy need; another plan must have that length.

    Raises:
        ZeusError: None of these, or another length.
    """
    if isinstance(source, str) and source in PRESETS:
        return Plan.uniform(_check_given(num_steps, source), PRESETS[source])
    if isinstance(source, str) and source.startswith(_PRIOR):
        return PriorPlanner(source[len(_PRIOR) :])(_check_given(num_steps, source))
    if isinstance(source, str) and not source.endswith(".json"):
        source = Plan(source)
    elif isinstance(source, str | os.PathLike):
        data = json_file.load(Path(source), "plan")
        if (policy := find_step_policy(data)) is not None:
            return read_step_policy(policy, _check_given(num_steps, source))
        if isinstance(data, dict) and "format" not in data:
            raise ZeusError(
                f"plan: got {source}, which has no plan and no diffusion_step_policy; expected a file of `zeus-trt "
                "calibrate`, or the config.json of a checkpoint with such a policy. Give another file."
            )
        source = (CalibratedPlan if isinstance(data, dict) and "plan" in data else Plan).from_json(data)
    plan = source.plan if isinstance(source, CalibratedPlan) else source
    if not isinstance(plan, Plan):
        raise ZeusError(f"plan: got {show(plan)}; expected letters such as FFXRF, or the path of a file. Change it.")
    return plan if num_steps is None else plan.check_length(num_steps)


def _check_given(num_steps: int | None, source: object) -> int:
    if num_steps is None:
        raise ZeusError(f"num_steps: got none for {source}; expected a number of steps. Give it.")
    return num_steps


def is_for_any_length(source: object) -> bool:
    """Whether a source of ``load_plan`` makes a plan of any length: a preset, the prior, or a step policy."""
    if isinstance(source, str) and (source in PRESETS or source.startswith(_PRIOR)):
        return True
    if (isinstance(source, str) and not source.endswith(".json")) or not isinstance(source, str | os.PathLike):
        return False
    return find_step_policy(json_file.load(Path(source), "plan")) is not None


def choose_plan(
    plan: Plan | CalibratedPlan | str | os.PathLike | Planner | None = None,
    ratio: int | None = None,
    window: str | Window | None = None,
    preset: str | None = None,
    predictor: str | Predictor | None = None,
) -> Planner:
    """Returns what makes the plan for a number of evaluations; wrong words are refused now.

    Args:
        plan: A plan, as ``load_plan`` takes it; ``prior:22`` or ``prior:fast``, the plan of the prior with so many full
            steps or as many as the preset has; or a function that makes a plan for a number of evaluations.
        ratio: Skipped steps after each full one, instead of ``plan``; 3 by default.
        window: Steps that stay full at both ends, beside ``ratio`` or ``preset``: text that
            ``read_window`` reads, two fractions, or ``Ends``.
        preset: A name of ``PRESETS``, instead of ``ratio``.
        predictor: The rule that fills skipped steps; a calibrated plan has its own.

    Raises:
        ZeusError: Two ways to give the plan, or a plan, ratio, window, preset or predictor that does not exist.
    """
    asked = {"plan": plan, "ratio": ratio, "preset": preset, "window": window}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1 and given != ["ratio", "window"] and given != ["preset", "window"]:
        raise ZeusError(
            f"{given[1]}: got it beside a {given[0]}; expected one of the two, since each says which steps are full. "
            "Leave one out."
        )
    if isinstance(plan, str) and plan in PRESETS:
        plan, preset = None, plan
    if isinstance(plan, str) and plan.startswith(_PRIOR):
        if predictor is not None:
            raise ZeusError(
                f"predictor: got {predictor} beside {plan}, whose plan has its own; expected one of the two. Leave the "
                "predictor out."
            )
        return PriorPlanner(plan[len(_PRIOR) :])
    if plan is None:
        return _make_uniform(ratio, window, preset, predictor)
    if isinstance(plan, str | os.PathLike) and is_for_any_length(plan):
        return lambda total: load_plan(plan, total).with_predictor(predictor)
    if isinstance(plan, Plan | CalibratedPlan | str | os.PathLike):
        return load_plan(plan).with_predictor(predictor).check_length
    if not callable(plan):
        raise ZeusError(f"plan: got {type(plan).__name__}; expected a Plan, letters or a file. Change it.")
    Plan("F").with_predictor(predictor)
    make = plan

    def make_checked(length: int) -> Plan:
        made = make(length)
        if not isinstance(made, Plan):
            raise ZeusError(f"plan: got {type(made).__name__}; expected a Plan from what makes it. Change it.")
        return made.with_predictor(predictor).check_length(length)

    return make_checked


def _make_uniform(ratio: Any, window: Any, preset: Any, predictor: str | Predictor | None) -> Planner:
    if preset is not None and preset not in PRESETS:
        raise ZeusError(f"preset: got {preset!r}; expected one of {', '.join(PRESETS)}. Choose one of these.")
    skipped = PRESETS[preset] if preset else DEFAULT_RATIO if ratio is None else ratio
    full = read_window(window) if isinstance(window, str) else WINDOWS["default"] if window is None else window
    Plan.uniform(1, skipped, full).with_predictor(predictor)
    return lambda total: Plan.uniform(total, skipped, full).with_predictor(predictor)
