"""The solver loop, step by step."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.zeus_graph import Predictor, StepController, StepPlan
from zeus_trt.zeus_graph.trace import read_sigmas


@dataclass(frozen=True)
class Step:
    """One step of a trajectory, after it ran.

    Args:
        index: Position in the plan.
        kind: ``F`` full, ``X`` extrapolated, ``R`` reused.
        timestep: What the denoiser was, or would have been, told.
        latents: The sample after the step, (batch, ...).
        output: The denoiser output that the solver used, (batch, ...).
    """

    index: int
    kind: str
    timestep: float
    latents: torch.Tensor
    output: torch.Tensor


def run_steps(
    denoiser: Denoiser,
    scheduler: Any,
    noise: torch.Tensor,
    plan: StepPlan,
    num_steps: int,
    *,
    predictor: str | Predictor = "zeus",
    conditioning: Mapping[str, torch.Tensor] | None = None,
    latents_name: str = "sample",
) -> Iterator[Step]:
    """Runs a trajectory in step mode: the scheduler's own ``step``, full or predicted outputs.

    With every step full this is the plain diffusers loop, to the bit.

    Args:
        denoiser: Called at full steps with the scaled latents, a float32 ``timestep`` of
            shape (batch,) and the conditioning.
        scheduler: A diffusers scheduler; copied, so that trajectories share nothing.
        noise: Standard normal noise, (batch, ...); its dtype is that of the latents.
        plan: What happens at each of the schedule's evaluations.
        num_steps: What the scheduler is asked for; solvers of two evaluations per step
            have a longer plan.
        predictor: The rule that fills skipped steps.
        conditioning: Constant inputs of the denoiser, each (batch, ...).
        latents_name: The denoiser's name for the noisy latents.

    Yields:
        One ``Step`` per evaluation, as it is done.

    Raises:
        ZeusError: The plan's length is not that of the schedule.
    """
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(num_steps, device=noise.device)
    timesteps = scheduler.timesteps
    plan.check_length(len(timesteps))
    predictor = Predictor.parse(predictor)
    controller = StepController(plan, predictor, _read_grid(scheduler, predictor))
    scale_model_input = getattr(scheduler, "scale_model_input", lambda latents, timestep: latents)
    latents = noise * getattr(scheduler, "init_noise_sigma", 1.0)
    for index, timestep in enumerate(timesteps):
        model_input = scale_model_input(latents, timestep)
        if controller.is_full(index):
            rows = timestep.to(torch.float32).expand(len(noise))
            output = denoiser(**{latents_name: model_input, "timestep": rows, **(conditioning or {})}).to(noise.dtype)
            controller.take(index, output)
        else:
            output = controller.predict(index)
        latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        yield Step(index, plan.steps[index], float(timestep), latents, output)


def count_evaluations(scheduler: Any, num_steps: int) -> int:
    """Denoiser evaluations of ``num_steps`` steps: what a plan's length must be."""
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(num_steps)
    return len(scheduler.timesteps)


def _read_grid(scheduler: Any, predictor: Predictor) -> Sequence[float] | None:
    """The predictor's abscissa of every evaluation, the same as program mode's; None if it has none."""
    timesteps = [float(timestep) for timestep in scheduler.timesteps]
    return read_sigmas(scheduler, timesteps) if predictor.abscissa == "sigma" else timesteps
