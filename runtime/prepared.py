"""A trajectory that is ready to run, and its report."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from zeus_trt.runtime.calls import Asked
from zeus_trt.runtime.report import Report, Result, bound_speedup
from zeus_trt.runtime.steppers import Step
from zeus_trt.runtime.trajectory import Outcome, Trajectory
from zeus_trt.zeus_graph.sampling_program import SamplingProgram


@dataclass(frozen=True)
class Prepared:
    """What ``Session.prepare`` makes; it runs once.

    Args:
        backend: Name of the engine.
        trajectory: The request that was checked.
        program: The sampling program; None for step mode.
        mode_reason: Why.
        on_step: Called with every step as it is done.
        is_plain: Whether nothing of the caller's own is called while it runs.
        began: When the request came, by ``time.perf_counter``.
    """

    backend: str
    trajectory: Trajectory
    program: SamplingProgram | None
    mode_reason: str
    on_step: Callable[[Step], None] | None
    is_plain: bool
    began: float

    def run(self) -> Result:
        """Runs it to its end; raises ZeusError for an output that is not finite, and what the engine raises."""
        trajectory = self.trajectory
        return self._finish(trajectory.run(self.program) if self.program else trajectory.walk(self.on_step))

    def ask(self) -> Generator[Asked, torch.Tensor, Result]:
        """As ``run``, but whoever holds the generator calls the engine: it yields letter and inputs of each call, and
        is sent the output."""
        return self._finish((yield from self.trajectory.ask(self.program)))

    def _finish(self, outcome: Outcome) -> Result:
        meter = outcome.model.meter
        bound = bound_speedup(outcome.plan, meter.seconds("F"), meter.seconds("Q"))
        report = Report(
            backend=self.backend,
            mode="program" if self.program else "step",
            mode_reason=self.mode_reason,
            plan=outcome.plan,
            predictor=str(self.trajectory.request.plan.rule),
            nfe=meter.nfe,
            engine_seconds=meter.seconds(),
            total_seconds=time.perf_counter() - self.began,
            speedup_bound=bound * (meter.nfe / meter.work),
            engine_calls=meter.calls,
            drift=outcome.drift,
            reason=self.trajectory.reason,
            row_plans=outcome.row_plans,
        )
        return Result(outcome.latents, report)
