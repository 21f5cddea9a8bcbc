"""What a trajectory did, and what came of it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Report:
    """What a trajectory did.

    Args:
        backend: Name of the engine.
        mode: ``program`` or ``step``.
        mode_reason: Why.
        plan: The step plan that ran, as a string: with the full steps that drift inserted.
        predictor: Name of the predictor.
        nfe: Number of full steps, counted as they ran.
        engine_seconds: Time inside the engine; on CUDA the device's own.
        total_seconds: Time of the whole trajectory.
        speedup_bound: Evaluations / NFE: no speed-up can be larger.
        engine_calls: How often the engine was called: twice NFE where guidance makes a call per branch.
        drift: At each full step that follows skipped ones, if asked for: the step, and the relative distance between
            its output and what the predictor would have said.
    """

    backend: str
    mode: str
    mode_reason: str
    plan: str
    predictor: str
    nfe: int
    engine_seconds: float
    total_seconds: float
    speedup_bound: float
    engine_calls: int = 0
    drift: tuple[tuple[int, float], ...] = ()

    @property
    def loop_seconds(self) -> float:
        """Time outside of the engine: solver, guidance, Python."""
        return self.total_seconds - self.engine_seconds


@dataclass(frozen=True)
class Result:
    """Final latents, float32 (batch, ...), and the report of their trajectory."""

    latents: torch.Tensor
    report: Report
