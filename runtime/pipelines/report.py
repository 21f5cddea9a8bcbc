"""What is said of a pipeline's run."""

from collections.abc import Iterable
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.pipelines.run import PipelineRun
from zeus_trt.runtime.report import Report, bound_speedup
from zeus_trt.zeus_graph.plan import FULL


def refuse_no_step(pipeline: str, run: PipelineRun, has_schedule: bool) -> ZeusError:
    """The error of a run without a step.

    Args:
        pipeline: The pipeline's class.
        run: The run.
        has_schedule: Whether it set the timesteps of its scheduler.
    """
    got = f"pipeline: got a run of {pipeline} without a step of its denoiser and its scheduler"
    if has_schedule and not run.meter.calls:
        return ZeusError(
            f"{got}: its settings leave no step of the schedule; expected one or more. Raise its strength, or the "
            "number of steps."
        )
    reason = "It calls its denoiser without steps of a scheduler, and" if run.meter.calls else "It"
    return ZeusError(f"{got}; expected some. {reason} cannot be accelerated: run it as it is.")


def check_step(pipeline: str, arguments: Iterable[str]) -> None:
    """Raises ZeusError unless a scheduler's step takes a model output and a timestep.

    Args:
        pipeline: The pipeline's class.
        arguments: Names of what the step takes.
    """
    if not {"model_output", "timestep"} <= {*arguments}:
        raise ZeusError(
            f"scheduler: got a {pipeline} whose scheduler steps with {', '.join(arguments)}; expected one that steps "
            "with a model_output at a timestep. It cannot be accelerated: run it as it is."
        )


def make_report(run: PipelineRun, engine: Any) -> Report:
    """The report of a run, by an engine or, with None, by the pipeline's own denoiser."""
    reason = "the pipeline's own loop"
    if run.keepers:
        names = ", ".join(sorted(run.keepers))
        reason += f"; no step is skipped, as it may read what {names} keeps of each call, such as attention maps"
    seconds = [run.meter.seconds(name + letter for name in run.denoisers) for letter in FULL]
    return Report(
        backend="eager" if engine is None else getattr(engine, "backend", type(engine).__name__),
        mode="step",
        mode_reason=reason,
        plan=run.steps,
        predictor=str(run.rule),
        nfe=run.meter.nfe,
        engine_calls=run.meter.calls,
        drift=tuple((step, float(drift)) for step, drift in run.drift),
        engine_seconds=sum(seconds),
        total_seconds=run.total_seconds,
        speedup_bound=bound_speedup(run.steps, *seconds),
        reason=run.reason,
        row_plans=run.row_plans,
    )
