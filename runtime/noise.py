"""Initial noise, the same on every backend."""

from collections.abc import Sequence

import torch

from zeus_trt.errors import ZeusError


def draw_noise(shape: Sequence[int], seed: int | Sequence[int]) -> torch.Tensor:
    """Standard normal noise of ``shape``, float32, drawn on the CPU.

    Args:
        shape: The batch first.
        seed: Of the whole batch; or one of each row, which then has the same noise in every batch.

    Raises:
        ZeusError: Another number of seeds than rows.
    """
    return draw_from(make_generators(seed), shape)


def make_generators(seed: int | Sequence[int]) -> torch.Generator | list[torch.Generator]:
    """A generator on the CPU, or one per row."""
    if isinstance(seed, int):
        return torch.Generator().manual_seed(seed)
    return [torch.Generator().manual_seed(one) for one in seed]


def draw_from(generators: torch.Generator | list[torch.Generator], shape: Sequence[int]) -> torch.Tensor:
    """Standard normal noise of ``shape``, float32, which moves the generators on: steps that draw go on from there.

    Raises:
        ZeusError: Another number of generators than rows.
    """
    if isinstance(generators, torch.Generator):
        return torch.randn(tuple(shape), generator=generators)
    if len(generators) != shape[0]:
        raise ZeusError(
            f"seed: got {len(generators)} seeds; expected {shape[0]}, one per row. Give one each, or a single one."
        )
    return torch.stack([torch.randn(tuple(shape[1:]), generator=generator) for generator in generators])
