"""The solver loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import ModelCall
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.drift import DriftController
from zeus_trt.runtime.steppers import Blend, SchedulerStepper, Step, Stepper
from zeus_trt.zeus_graph import Plan, Predictor, StepController, choose_predictor
from zeus_trt.zeus_graph.trace import prepare, read_sigmas


def run(denoiser: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], stepper: Stepper) -> torch.Tensor:
    """Runs a trajectory to its end.

    Args:
        denoiser: Maps model input (batch, ...) and float32 timestep (batch,) to the output (batch, ...).
        stepper: The trajectory.

    Returns:
        The final latents.
    """
    while call := stepper.call:
        stepper.feed(denoiser(*call))
    return stepper.latents


def walk(model: ModelCall, stepper: SchedulerStepper) -> Iterator[Step]:
    """As ``run``, a step at a time; the last step's latents were checked to be finite."""
    while call := stepper.call:
        for step in stepper.advance(model(*call)):
            if stepper.is_done:
                model.finish()
            yield step


def start_stepper(
    scheduler: Any,
    noise: torch.Tensor,
    plan: Plan,
    num_steps: int,
    *,
    predictor: str | Predictor | None = None,
    begin: int | None = None,
    schedule: Mapping[str, Any] | None = None,
    drift_threshold: float | None = None,
    **options: Any,
) -> SchedulerStepper:
    """Makes a stepper of a copy of the scheduler; arguments and errors as in ``run_steps``.

    Args:
        **options: ``generator`` and ``blend`` of ``SchedulerStepper``.
    """
    first = begin or 0
    scheduler = prepare(scheduler, num_steps, first, {**(schedule or {}), "device": noise.device})
    times = [float(timestep) for timestep in scheduler.timesteps[first:].tolist()]
    plan.check_length(len(times))
    predictor = choose_predictor(plan, predictor)
    grid = read_sigmas(scheduler, times, first) if predictor.abscissa == "sigma" else times
    policy = (
        StepController(plan, predictor, grid)
        if drift_threshold is None
        else DriftController(plan, predictor, grid, drift_threshold)
    )
    latents = noise * (getattr(scheduler, "init_noise_sigma", 1.0) if begin is None else 1.0)
    return SchedulerStepper(scheduler, latents, policy, begin=first, **options)


def run_steps(
    denoiser: Denoiser,
    scheduler: Any,
    noise: torch.Tensor,
    plan: Plan,
    num_steps: int,
    *,
    predictor: str | Predictor | None = None,
    conditioning: Mapping[str, torch.Tensor] | None = None,
    latents_name: str = "sample",
    begin: int | None = None,
    schedule: Mapping[str, Any] | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    drift_threshold: float | None = None,
    blend: Blend | None = None,
) -> Iterator[Step]:
    """Runs a trajectory in step mode: the scheduler's own ``step``, full or predicted outputs.

    With every step full this is the plain diffusers loop, to the bit.

    Args:
        denoiser: Called at full steps with the scaled latents, a float32 ``timestep`` of shape (batch,) and the
            conditioning.
        scheduler: A diffusers scheduler; copied, so that trajectories share nothing.
        noise: Standard normal noise, (batch, ...); its dtype is that of the latents.
        plan: What happens at each of the schedule's evaluations.
        num_steps: Steps of the scheduler; solvers of two evaluations per step have a longer plan.
        predictor: The rule that fills skipped steps; by default the plan's, else ``zeus``.
        conditioning: Constant inputs of the denoiser, each (batch, ...).
        latents_name: The denoiser's name for the noisy latents.
        begin: Index of the first evaluation in the scheduler's timesteps. Then ``noise`` is the sample there: latents
            with noise added (``Start``).
        schedule: More arguments of ``set_timesteps``: ``sigmas``, ``timesteps``, ``mu`` ...
        generator: Source of a stochastic scheduler's random numbers; torch's global one by default.
        drift_threshold: Measure drift; where it is above this, the next step is full too (``DriftController``).
            Infinity only measures.
        blend: Changes the latents after each step, for inpainting.

    Yields:
        One ``Step`` per evaluation, as it is done.

    Raises:
        ZeusError: The plan's length is not that of the schedule, ``set_timesteps`` refuses its arguments, or an output
            is not a finite floating-point tensor of the latents' shape.
    """
    if not isinstance(plan, Plan):
        raise ZeusError(f"plan: got {type(plan).__name__}; expected a Plan. Make one with Plan.uniform().")
    stepper = start_stepper(
        scheduler, noise, plan, num_steps,
        predictor=predictor, begin=begin, schedule=schedule, drift_threshold=drift_threshold,
        generator=generator, blend=blend,
    )  # fmt: skip
    yield from walk(ModelCall(denoiser, stepper, conditioning, latents_name), stepper)


def count_evaluations(scheduler: Any, num_steps: int, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> int:
    """Denoiser evaluations of ``num_steps`` steps, from ``begin`` on: what a plan's length must be."""
    return len(prepare(scheduler, num_steps, begin, schedule or {}).timesteps) - begin
