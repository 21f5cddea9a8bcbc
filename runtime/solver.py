"""The solver of a session: the bundle's stored programs, a diffusers scheduler, or both."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.loop import count_evaluations
from zeus_trt.runtime.scheduler import build_scheduler
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import UntraceableError, trace

MODES = ("auto", "program", "step")
_REMEMBERED = 64  # traced schedules

_Schedule = tuple[tuple[str, Any], ...]


class Solver:
    """Makes sampling programs; needs diffusers only for schedules that the bundle does not store. Threads may share it.

    Args:
        bundle: It holds stored programs and the scheduler's config.
        scheduler: A diffusers scheduler to use instead of the bundle's.
    """

    def __init__(self, bundle: Bundle, scheduler: Any = None):
        self._bundle = bundle
        self._given = scheduler
        self._remember = lru_cache(_REMEMBERED)(self._find)
        self._fold = lru_cache(_REMEMBERED)(fold)
        self._lock = threading.Lock()

    @cached_property
    def scheduler(self) -> Any:
        """The diffusers scheduler; raises ZeusError where diffusers is missing."""
        return build_scheduler(self._bundle.scheduler_config) if self._given is None else self._given

    def count_evaluations(self, num_steps: int, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> int:
        """Denoiser evaluations of ``num_steps`` steps, from ``begin`` on."""
        if self._is_stored(num_steps, begin, _freeze(schedule)):
            return self.program(num_steps).num_evaluations
        return count_evaluations(self.scheduler, num_steps, begin, schedule)

    def program(self, num_steps: int, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> SolverProgram:
        """The traced solver for ``num_steps``: stored, or traced now and remembered.

        Args:
            num_steps: Solver steps.
            begin: Index of the first evaluation in the scheduler's timesteps.
            schedule: More arguments of ``set_timesteps``.

        Raises:
            UntraceableError: The solver is nonlinear or stochastic.
            ZeusError: Neither stored nor traceable, since diffusers is missing.
        """
        with self._lock:  # traced once, not by every thread that asks
            found = self._remember(num_steps, begin, _freeze(schedule))
        if isinstance(found, UntraceableError):
            raise UntraceableError(*found.args)  # a new one: what is remembered has no frames
        return found

    def choose(
        self,
        mode: str,
        plan: Plan,
        num_steps: int,
        begin: int | None = None,
        schedule: Mapping[str, Any] | None = None,
        needs_steps: str | None = None,
    ) -> tuple[SamplingProgram | None, str]:
        """Decides how a trajectory runs.

        Args:
            mode: ``program``, ``step``, or ``auto``: by program where the solver is linear and
                something is skipped.
            plan: The plan, with its predictor.
            num_steps: Solver steps.
            begin: Index of the first evaluation, for a trajectory that begins with latents instead of noise.
            schedule: More arguments of ``set_timesteps``.
            needs_steps: What only step mode does, if that is asked for.

        Returns:
            The sampling program, or None for step mode; and the reason.

        Raises:
            ZeusError: An unknown mode, or ``program`` for a solver that cannot be traced.
        """
        if not isinstance(mode, str) or mode not in MODES:
            raise ZeusError(f"mode: got {mode!r}; expected one of {', '.join(MODES)}. Choose one of these.")
        if mode == "step" or needs_steps:
            return None, "asked for" if mode == "step" else f"{needs_steps} is asked for"
        if mode == "auto" and plan.nfe == len(plan) and self._has_scheduler():
            return None, "nothing is skipped: the plain loop, to the bit"
        try:
            program = self._fold(self.program(num_steps, begin or 0, schedule), plan)
        except UntraceableError as error:
            if mode == "program":
                raise
            return None, str(error)
        if begin is not None:
            program = replace(program, init_noise_sigma=1.0)
        return program, "asked for" if mode == "program" else "the solver is linear"

    def _is_stored(self, num_steps: int, begin: int, schedule: _Schedule) -> bool:
        is_plain = self._given is None and not begin and not schedule
        return is_plain and self._bundle.has_solver(num_steps)

    def _has_scheduler(self) -> bool:
        try:
            return self.scheduler is not None
        except ZeusError:
            return False

    def _find(self, num_steps: int, begin: int, schedule: _Schedule) -> SolverProgram | UntraceableError:
        if self._is_stored(num_steps, begin, schedule):
            config = self._bundle.scheduler_config
            stored = SolverProgram.from_json(strict_json.decode(self._bundle.read_solver(num_steps), "solver program"))
            return stored.check(config["_class_name"], config, num_steps)
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in schedule}
        try:
            return trace(self.scheduler, num_steps, begin=begin, **arguments)
        except UntraceableError as error:
            return error.with_traceback(None)


def _freeze(schedule: Mapping[str, Any] | None) -> _Schedule:
    """Arguments of ``set_timesteps`` as a key: lists, arrays and tensors of numbers become tuples.

    Raises:
        ZeusError: Another kind of value.
    """
    frozen = []
    for name, value in (schedule or {}).items():
        plain = value.tolist() if hasattr(value, "tolist") else value
        plain = tuple(plain) if isinstance(plain, list) else plain
        try:
            hash(plain)
        except TypeError as error:
            raise ZeusError(
                f"schedule: got {name} = {value!r}; expected a number or a list of numbers. Change it."
            ) from error
        frozen.append((name, plain))
    return tuple(sorted(frozen, key=lambda pair: str(pair[0])))
