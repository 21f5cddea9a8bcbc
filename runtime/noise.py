"""Initial noise, the same on every backend."""

from collections.abc import Sequence

import torch


def draw_noise(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Standard normal noise of ``shape``, float32, drawn on the CPU from ``seed``."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))
