"""The contract that every engine, wrapper and toy function keeps."""

from dataclasses import dataclass
from typing import Protocol

import torch


class Denoiser(Protocol):
    """A callable of flat named tensors that returns one tensor."""

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs (latents, timestep, conditioning; batch first) to the model output."""
        ...


@dataclass(frozen=True)
class EnginePair:
    """The engines of plans with ``Q``.

    Args:
        full: Answers steps of the letter ``F``.
        quantized: Answers steps of the letter ``Q``.
    """

    full: Denoiser
    quantized: Denoiser

    def answer(self, letter: str) -> Denoiser:
        """The engine of a full step's letter."""
        return self.quantized if letter == "Q" else self.full
