"""Trajectories that begin with a picture: image to image, and inpainting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.steppers import Blend
from zeus_trt.zeus_graph.trace import prepare


@dataclass(frozen=True)
class Start:
    """Where a trajectory begins.

    Args:
        latents: Clean latents of the picture, (batch, ...); noise is added as the scheduler does it.
        begin: Index of the first evaluation in the scheduler's timesteps, see ``Session.begin``.
        mask: 1 where it is painted anew, 0 where the picture stays, broadcast to the latents. With a mask the
            trajectory goes step by step.
        strength: How much of the schedule runs, above 0 and up to 1, instead of ``begin``.

    Raises:
        ZeusError: ``begin`` and ``strength``.
    """

    latents: torch.Tensor
    begin: int = 0
    mask: torch.Tensor | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        if self.strength is not None and self.begin:
            raise ZeusError(
                f"strength: got {self.strength!r} beside begin {self.begin!r}; expected one of the two. Leave one out."
            )


STRENGTH_RULES = ("steps", "begin")
"""What is rounded down: ``steps``, the int(N s) steps that run (Stable Diffusion, SDXL, Wan, CogVideoX), or ``begin``,
the int(N - N s) steps that are left out (Stable Diffusion 3, FLUX, Qwen-Image, Chroma)."""


def find_begin(order: int, num_steps: int, strength: float, rule: str = "steps") -> int:
    """The first evaluation of an image-to-image run, as the diffusers pipelines of its family choose it.

    Args:
        order: Evaluations of a solver step: the scheduler's ``order``.
        num_steps: Solver steps of the whole schedule.
        strength: How much of the schedule runs, above 0 and up to 1.
        rule: One of ``STRENGTH_RULES``.

    Raises:
        ZeusError: A strength outside of its range, or one so small that no step is left.
    """
    is_number = isinstance(strength, int | float) and not isinstance(strength, bool)
    begin = num_steps
    if is_number and 0 < strength <= 1:
        begin = int(num_steps - num_steps * strength) if rule == "begin" else num_steps - int(num_steps * strength)
    if begin == num_steps:
        raise ZeusError(
            f"strength: got {strength!r} of {num_steps} steps; expected a number up to 1 that leaves a step. Raise it."
        )
    return begin * order


def add_noise(
    scheduler: Any, start: Start, noise: torch.Tensor, num_steps: int, schedule: Mapping[str, Any]
) -> torch.Tensor:
    """The sample that the trajectory begins with, by the scheduler's ``add_noise`` or ``scale_noise``.

    Raises:
        ZeusError: A begin between the evaluations of one step, or a scheduler that adds no noise.
    """
    order = getattr(scheduler, "order", 1)
    if start.begin % order:
        raise ZeusError(
            f"begin: got {start.begin}; expected a multiple of {order}, the evaluations of a step. Change it."
        )
    prepared = prepare(scheduler, num_steps, start.begin, {**schedule, "device": noise.device})
    return _mix(prepared, start.latents.detach().to(noise), noise, prepared.timesteps[start.begin])


def keep_outside(clean: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> Blend:
    """What puts the picture back where the mask is 0, after each step, with the noise of the next one."""
    clean, mask = clean.detach().to(noise), mask.detach().to(noise)

    def blend(scheduler: Any, timestep: torch.Tensor | None, latents: torch.Tensor) -> torch.Tensor:
        outside = clean if timestep is None else _mix(scheduler, clean, noise, timestep)
        return mask * latents + (1 - mask) * outside

    return blend


def _mix(scheduler: Any, clean: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    rows = timestep.expand(len(clean))
    if hasattr(scheduler, "scale_noise"):
        return scheduler.scale_noise(clean, rows, noise)
    if hasattr(scheduler, "add_noise"):
        return scheduler.add_noise(clean, noise, rows)
    raise ZeusError(
        f"start: got a {type(scheduler).__name__}, which adds no noise; expected a scheduler with add_noise or "
        "scale_noise. Use another."
    )
