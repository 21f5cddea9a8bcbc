"""Which plan a pipeline's run gets: the one that is asked for, or a calibrated one of its engine's bundle."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.guidance import Guidance
from zeus_trt.runtime.menu import Aim, Offer, check_floor
from zeus_trt.runtime.session import Session
from zeus_trt.runtime.solver import Solver
from zeus_trt.zeus_graph import Plan, SolverProgram, choose_plan, trace
from zeus_trt.zeus_graph.plan_choice import Planner, lay_plan
from zeus_trt.zeus_graph.trace import UntraceableError

_Arguments = Mapping[str, Any]
_OF_LENGTH = ("num_inference_steps", "device")


@dataclass(frozen=True)
class PlanChoice:
    """How the plan of a run is chosen, when the number of its evaluations is known.

    Args:
        planner: Makes the plan that is asked for, or the default.
        reason: Why that.
        aim: What a calibrated plan is to reach.
    """

    planner: Planner
    reason: str
    aim: Aim | None = None

    @classmethod
    def read(cls, min_psnr: float | None = None, aim: Aim | None = None, **asked: Any) -> "PlanChoice":
        """Reads the arguments of ``accelerate`` that say a plan; an aim beside a plan changes nothing.

        Raises:
            ZeusError: A wrong plan, an unknown argument, or ``min_psnr`` beside a plan.
        """
        known = inspect.signature(choose_plan).parameters
        if unknown := asked.keys() - known:
            raise ZeusError(
                f"accelerate: got the argument {min(unknown)}; expected ones that it takes, such as "
                f"{', '.join(known)}. Leave it out."
            )
        planner = choose_plan(**asked)
        says_plan = any(value is not None for value in asked.values())
        check_floor(min_psnr, says_plan)
        if says_plan or (aim is None and min_psnr is None):
            return cls(planner, "asked for" if says_plan else "the default")
        return cls(planner, "", Aim(min_psnr, aim.fits if aim else None, aim.load if aim else ""))

    def choose(
        self, count: int, session: Session | None, scheduler: Any, schedule: _Arguments, called: _Arguments
    ) -> tuple[Plan, str]:
        """The plan, whose first step is never quantized since no plan is known before its call; and why it.

        Args:
            count: Evaluations of the run.
            session: Of the engine that runs.
            scheduler: The pipeline's.
            schedule: What its ``set_timesteps`` was given.
            called: What the pipeline was called with.
        """
        plan, reason = None, self.reason
        if self.aim:
            offers = _list_offers(count, session, scheduler, schedule, called) if session else ()
            plan, reason = self.aim.choose(offers, count)
        plan = plan or lay_plan(self.planner, count, lambda: _trace(count, scheduler, schedule, called))
        return plan.with_quantized(i for i, letter in enumerate(plan.steps) if i and letter == "Q"), reason


def _list_offers(
    count: int, session: Session, scheduler: Any, schedule: _Arguments, called: _Arguments
) -> tuple[Offer, ...]:
    num_steps, scale = called.get("num_inference_steps"), called.get("guidance_scale", 1.0)
    if not isinstance(num_steps, int) or scale is None:  # not known here
        return ()
    own = _leave_length(schedule)
    is_own = _describe(scheduler) == _describe(session.solver.scheduler)
    solver = session.solver if is_own else Solver(session.bundle, scheduler)

    def find_fingerprint() -> str:
        try:
            begin = solver.count_evaluations(num_steps, 0, own) - count
            return solver.program(num_steps, begin, own).fingerprint
        except UntraceableError:
            return ""

    return session.menu.list(num_steps, Guidance(scale), find_fingerprint)


def _trace(count: int, scheduler: Any, schedule: _Arguments, called: _Arguments) -> SolverProgram:
    num_steps = called.get("num_inference_steps")
    if not isinstance(num_steps, int):
        raise UntraceableError("pipeline: got a call without num_inference_steps; expected it. Give it.")
    own = _leave_length(schedule)
    whole = trace(scheduler, num_steps, **own)
    begin = whole.num_evaluations - count
    return trace(scheduler, num_steps, begin=begin, **own) if begin else whole


def _leave_length(schedule: _Arguments) -> dict[str, Any]:
    return {name: value for name, value in schedule.items() if name not in _OF_LENGTH and value is not None}


def _describe(scheduler: Any) -> tuple[type, dict[str, Any]]:
    config = getattr(scheduler, "config", {})
    return type(scheduler), {name: value for name, value in config.items() if not name.startswith("_")}
