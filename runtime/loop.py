"""The solver loop."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import ModelCall
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.steppers import SchedulerStepper, Step, Stepper
from zeus_trt.zeus_graph import Plan, StaticPolicy
from zeus_trt.zeus_graph.noise_grid import measure_scheduler
from zeus_trt.zeus_graph.policy import PolicyMaker
from zeus_trt.zeus_graph.policy_choice import settle_plan
from zeus_trt.zeus_graph.trace import prepare


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
    begin: int | None = None,
    schedule: Mapping[str, Any] | None = None,
    make_policy: PolicyMaker = StaticPolicy,
    **options: Any,
) -> SchedulerStepper:
    """Makes a trajectory in step mode: the scheduler's own ``step``, full or predicted outputs.

    Args:
        scheduler: A diffusers scheduler; copied, so that trajectories share nothing.
        noise: Standard normal noise, (batch, ...); its dtype is that of the latents.
        plan: What happens at each of the schedule's evaluations, and the predictor.
        num_steps: Steps of the scheduler; solvers of two evaluations per step have a longer plan.
        begin: Index of the first evaluation in the scheduler's timesteps. Then ``noise`` is the sample there: latents
            with noise added (``Start``).
        schedule: More arguments of ``set_timesteps``: ``sigmas``, ``timesteps``, ``mu`` ...
        make_policy: Makes what decides which steps are full: ``StaticPolicy``, the plan as it is written, or another
            of ``zeus_graph.policy``.
        **options: ``generator`` and ``blend`` of ``SchedulerStepper``.

    Raises:
        ZeusError: The plan's length is not that of the schedule, its predictor cannot fill it, or ``set_timesteps``
            refuses its arguments.
    """
    if not isinstance(plan, Plan):
        raise ZeusError(f"plan: got {type(plan).__name__}; expected a Plan. Make one with Plan.uniform().")
    first = begin or 0
    scheduler = prepare(scheduler, num_steps, first, {**(schedule or {}), "device": noise.device})
    times = [float(timestep) for timestep in scheduler.timesteps[first:].tolist()]
    plan.check_length(len(times))
    plan = settle_plan(make_policy, plan)
    grid = measure_scheduler(plan.rule, scheduler, times, first)
    latents = noise * (getattr(scheduler, "init_noise_sigma", 1.0) if begin is None else 1.0)
    return SchedulerStepper(scheduler, latents, make_policy(plan, grid), begin=first, **options)


def run_steps(
    denoiser: Denoiser,
    scheduler: Any,
    noise: torch.Tensor,
    plan: Plan,
    num_steps: int,
    *,
    conditioning: Mapping[str, torch.Tensor] | None = None,
    latents_name: str = "sample",
    **options: Any,
) -> Iterator[Step]:
    """Runs a trajectory in step mode.

    With every step full this is the plain diffusers loop, to the bit.

    Args:
        denoiser: Called at full steps with the scaled latents, a float32 ``timestep`` of shape (batch,) and the
            conditioning.
        scheduler, noise, plan, num_steps: As in ``start_stepper``.
        conditioning: Constant inputs of the denoiser, each (batch, ...).
        latents_name: The denoiser's name for the noisy latents.
        **options: ``begin``, ``schedule``, ``make_policy``, ``generator`` and ``blend`` of ``start_stepper``.

    Yields:
        One ``Step`` per evaluation, as it is done.

    Raises:
        ZeusError: As ``start_stepper``, or an output is not a finite floating-point tensor of the latents' shape.
    """
    stepper = start_stepper(scheduler, noise, plan, num_steps, **options)
    yield from walk(ModelCall(denoiser, stepper, conditioning, latents_name), stepper)


def count_evaluations(scheduler: Any, num_steps: int, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> int:
    """Denoiser evaluations of ``num_steps`` steps, from ``begin`` on: what a plan's length must be."""
    return len(prepare(scheduler, num_steps, begin, schedule or {}).timesteps) - begin
