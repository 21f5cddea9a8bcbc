"""The solver of a session: the bundle's stored programs, a diffusers scheduler, or both."""

import json
from functools import cached_property
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.loop import count_evaluations
from zeus_trt.runtime.scheduler import load_scheduler
from zeus_trt.zeus_graph import Predictor, StepPlan
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import UntraceableError, trace

MODES = ("auto", "program", "step")


class Solver:
    """Makes sampling programs; needs diffusers only for step counts that the bundle does not store.

    Args:
        bundle: Where stored programs and the scheduler's config lie.
        scheduler: A diffusers scheduler to use instead of the bundle's.
    """

    def __init__(self, bundle: Bundle, scheduler: Any = None):
        self._bundle = bundle
        self._given = scheduler
        self._programs: dict[int, SolverProgram | UntraceableError] = {}

    @cached_property
    def scheduler(self) -> Any:
        """The diffusers scheduler; raises ZeusError where diffusers is missing."""
        return self._given or load_scheduler(self._bundle.scheduler_config)

    def count_evaluations(self, num_steps: int) -> int:
        """Denoiser evaluations of ``num_steps`` steps."""
        if self._is_stored(num_steps):
            return self.program(num_steps).num_evaluations
        return count_evaluations(self.scheduler, num_steps)

    def program(self, num_steps: int) -> SolverProgram:
        """The traced solver for ``num_steps``: stored, or traced now and remembered.

        Raises:
            UntraceableError: The solver is nonlinear or stochastic.
            ZeusError: Neither stored nor traceable, since diffusers is missing.
        """
        if num_steps not in self._programs:
            self._programs[num_steps] = self._find(num_steps)
        found = self._programs[num_steps]
        if isinstance(found, UntraceableError):
            raise found
        return found

    def choose(
        self, mode: str, plan: StepPlan, num_steps: int, predictor: str | Predictor
    ) -> tuple[SamplingProgram | None, str]:
        """Decides how a trajectory runs.

        Args:
            mode: ``program``, ``step``, or ``auto``: by program where the solver is linear and
                something is skipped.
            plan: The step plan.
            num_steps: Solver steps.
            predictor: The rule that fills skipped steps.

        Returns:
            The sampling program, or None for step mode; and the reason.

        Raises:
            ZeusError: An unknown mode, or ``program`` for a solver that cannot be traced.
        """
        if mode not in MODES:
            raise ZeusError(f"mode: got {mode!r}; expected one of {', '.join(MODES)}. Choose one of these.")
        if mode == "step":
            return None, "asked for"
        if mode == "auto" and plan.nfe == plan.num_steps and self._has_scheduler():
            return None, "nothing is skipped: the plain loop, to the bit"
        try:
            program = fold(self.program(num_steps), plan, predictor)
        except UntraceableError as error:
            if mode == "program":
                raise
            return None, str(error)
        return program, "asked for" if mode == "program" else "the solver is linear"

    def _is_stored(self, num_steps: int) -> bool:
        return self._given is None and self._bundle.solver_file(num_steps).is_file()

    def _has_scheduler(self) -> bool:
        try:
            return self.scheduler is not None
        except ZeusError:
            return False

    def _find(self, num_steps: int) -> SolverProgram | UntraceableError:
        if self._is_stored(num_steps):
            config = json.loads(self._bundle.scheduler_config.read_text(encoding="utf-8"))
            return SolverProgram.load(self._bundle.solver_file(num_steps)).check(
                config["_class_name"], config, num_steps
            )
        try:
            return trace(self.scheduler, num_steps)
        except UntraceableError as error:
            return error
