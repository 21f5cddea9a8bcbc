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
        speedup_bound: No speed-up against the full run can be larger: see ``bound_speedup``. A call of some rows of
            the batch counts as their share.
        engine_calls: How often the engine was called: twice NFE where guidance makes a call per branch.
        drift: At each full step that follows skipped ones, if asked for: the step, and the relative distance between
            its output and what the predictor would have said.
        reason: Why this plan.
        row_plans: What each row of the batch did, in letters, where a policy decided for each; else empty, and empty
            for a pipeline that runs several loops. ``plan`` is full where one of them is.
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
    reason: str = ""
    row_plans: tuple[str, ...] = ()

    @property
    def loop_seconds(self) -> float:
        """Time outside of the engine: solver, guidance, Python."""
        return self.total_seconds - self.engine_seconds


def bound_speedup(plan: str, full_seconds: float, quantized_seconds: float) -> float:
    """The largest speed-up that a run can have against one whose steps are all ``F``.

    It is evaluations / cost, with a call of the full engine as the unit of cost: NFE, but that a call of the quantized
    engine costs what it took in this run. Where no ``F`` ran beside ``Q``, both engines count as equally fast.

    Args:
        plan: The letters that ran.
        full_seconds: Time inside the calls of ``F``.
        quantized_seconds: Time inside the calls of ``Q``.
    """
    full, quantized = plan.count("F"), plan.count("Q")
    if not (full and quantized and full_seconds):
        return len(plan) / (full + quantized)
    return len(plan) / (full * (1 + quantized_seconds / full_seconds))


@dataclass(frozen=True)
class Result:
    """Final latents, float32 (batch, ...), and the report of their trajectory."""

    latents: torch.Tensor
    report: Report
