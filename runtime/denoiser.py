"""The contract that every engine, wrapper and toy function keeps."""

from typing import Protocol

import torch


class Denoiser(Protocol):
    """A callable of flat named tensors that returns one tensor."""

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs (latents, timestep, conditioning; batch first) to the model output."""
        ...
