"""The denoiser of a bare model by its old names; to go with the last test that uses them."""

import torch

from zeus_trt.export.model import example_inputs

__all__ = ["FlatDenoiser", "example_inputs"]


class FlatDenoiser(torch.nn.Module):
    """The denoiser as a function of positional tensors that returns one tensor."""

    def __init__(self, denoiser: torch.nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.denoiser = denoiser
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.denoiser(**dict(zip(self.names, tensors, strict=True)))[0]
