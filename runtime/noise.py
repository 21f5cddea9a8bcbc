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
    if isinstance(seed, int):
        return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))
    if len(seed) != shape[0]:
        raise ZeusError(
            f"seed: got {len(seed)} seeds; expected {shape[0]}, one per row. Give one each, or a single one."
        )
    return torch.stack([draw_noise(shape[1:], one) for one in seed])
