"""The solver loop, step by step."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.drift import DriftController
from zeus_trt.zeus_graph import Predictor, StepController, StepPlan, choose_predictor
from zeus_trt.zeus_graph.trace import prepare, read_sigmas

Blend = Callable[[Any, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""Changes the latents after each step: told the scheduler, the next timestep (None after the last) and the latents."""


@dataclass(frozen=True)
class Step:
    """One step of a trajectory, after it ran.

    Args:
        index: Position in the plan.
        kind: ``F`` full, ``X`` extrapolated, ``R`` reused.
        timestep: What the denoiser was, or would have been, told.
        latents: The sample after the step, (batch, ...).
        output: The denoiser output that the solver used, (batch, ...).
        drift: At a full step after skipped ones, if asked for: the relative distance between its output and what the
            predictor would have said, a tensor () on the device.
    """

    index: int
    kind: str
    timestep: float
    latents: torch.Tensor
    output: torch.Tensor
    drift: torch.Tensor | None = None


def run_steps(
    denoiser: Denoiser,
    scheduler: Any,
    noise: torch.Tensor,
    plan: StepPlan,
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
    on_full: Callable[[int], None] | None = None,
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
        predictor: The rule that fills skipped steps; by default the plan's, else ``zeus``.
        conditioning: Constant inputs of the denoiser, each (batch, ...).
        latents_name: The denoiser's name for the noisy latents.
        begin: Index of the first evaluation in the scheduler's timesteps. Then ``noise`` is the sample there: latents
            with noise added (``Start``).
        schedule: More arguments of ``set_timesteps``: ``sigmas``, ``timesteps``, ``mu`` ...
        generator: What a stochastic scheduler draws from; torch's global one by default.
        drift_threshold: Measure drift; where it is above this, the next step is full too (``DriftController``).
            Infinity only measures.
        blend: Changes the latents after each step, for inpainting.
        on_full: Told the index of each full step before its call.

    Yields:
        One ``Step`` per evaluation, as it is done.

    Raises:
        ZeusError: The plan's length is not that of the schedule, or ``set_timesteps`` refuses its arguments.
    """
    first = begin or 0
    scheduler = prepare(scheduler, num_steps, first, {**(schedule or {}), "device": noise.device})
    timesteps = scheduler.timesteps[first:]
    plan.check_length(len(timesteps))
    times = [float(timestep) for timestep in timesteps.tolist()]
    predictor = choose_predictor(plan, predictor)
    grid = read_sigmas(scheduler, times, first) if predictor.abscissa == "sigma" else times
    controller = (
        StepController(plan, predictor, grid)
        if drift_threshold is None
        else DriftController(plan, predictor, grid, drift_threshold)
    )
    scale_model_input = getattr(scheduler, "scale_model_input", lambda latents, timestep: latents)
    draws = generator is not None and "generator" in inspect.signature(scheduler.step).parameters
    arguments = {"generator": generator} if draws else {}
    latents = noise * (getattr(scheduler, "init_noise_sigma", 1.0) if begin is None else 1.0)
    for index, timestep in enumerate(timesteps):
        model_input, drift = scale_model_input(latents, timestep), None
        kind = controller.plan.steps[index]
        if kind == "F":
            if on_full:
                on_full(index)
            rows = timestep.to(torch.float32).expand(len(noise))
            output = denoiser(**{latents_name: model_input, "timestep": rows, **(conditioning or {})}).to(noise.dtype)
            drift = controller.take(index, output)
        else:
            output = controller.predict(index)
        latents = scheduler.step(output, timestep, latents, return_dict=False, **arguments)[0]
        if blend:
            latents = blend(scheduler, timesteps[index + 1] if index + 1 < len(times) else None, latents)
        yield Step(index, kind, times[index], latents, output, drift)


def count_evaluations(scheduler: Any, num_steps: int, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> int:
    """Denoiser evaluations of ``num_steps`` steps, from ``begin`` on: what a plan's length must be."""
    return len(prepare(scheduler, num_steps, begin, schedule or {}).timesteps) - begin
