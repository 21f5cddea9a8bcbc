"""Guidance: a denoiser that wraps a denoiser."""

from collections.abc import Collection, Mapping

import torch

from zeus_trt.runtime.denoiser import Denoiser


class ClassifierFreeGuidance:
    """Classifier-free guidance in one batched call: uncond + scale * (cond - uncond).

    The wrapped denoiser sees twice the batch, unconditional rows first. Its output after
    guidance is what history and solver see.

    Args:
        denoiser: The denoiser to wrap.
        scale: Guidance scale; 1 is the conditional output itself.
        negative: The conditioning of the unconditional rows, by input name. Inputs that
            are not named here are the same in both halves.
        shared: Inputs without rows, such as the positions of tokens, passed on as they are.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        scale: float,
        negative: Mapping[str, torch.Tensor],
        shared: Collection[str] = (),
    ):
        self.denoiser = denoiser
        self.scale = scale
        self.negative = dict(negative)
        self.shared = frozenset(shared)

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Takes the conditional inputs, each (batch, ...); returns the guided output (batch, ...)."""
        doubled = {
            name: value if name in self.shared else torch.cat([self.negative.get(name, value), value])
            for name, value in inputs.items()
        }
        output = self.denoiser(**doubled)
        if output.dtype in (torch.float16, torch.bfloat16):
            output = output.float()  # a difference of halves, times a scale, would lose half of the digits
        uncond, cond = output.chunk(2)
        return uncond + self.scale * (cond - uncond)
