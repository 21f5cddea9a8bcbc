"""A range of guidance scales, of which every sample takes one by its number."""

import math
from collections.abc import Sequence
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import is_finite, show

Scale = float | tuple[float, float]
"""A guidance scale, or the least and the greatest of a range."""

_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, and every second or third of them, are spread evenly in 0..1


def read_scale(scale: Any) -> Any:
    """A range as a tuple of floats; anything else is returned as it is.

    Raises:
        ZeusError: A range that is not two numbers that rise.
    """
    if not isinstance(scale, tuple | list):
        return scale
    if len(scale) != 2 or not all(map(is_finite, scale)) or not scale[0] < scale[1]:
        raise ZeusError(
            f"guidance_scale: got the range {':'.join(map(show, scale))}; expected two numbers that rise, such as "
            "1.5:5. Change it."
        )
    return tuple(map(float, scale))


def take_scale(scale: Any, numbers: Sequence[int]) -> Any:
    """The guidance scale of a run: the only one, or from a range that of the one sample that runs.

    Args:
        scale: A number, or a range as a tuple.
        numbers: Which samples run.

    Raises:
        ZeusError: Several samples of a range: their scales differ.
    """
    if not isinstance(scale, tuple):
        return scale
    low, high = scale
    if len(numbers) != 1:
        raise ZeusError(
            f"guidance_scale: got the range {low:g}:{high:g} for {len(numbers)} samples at once; expected one sample. "
            "Run them one by one, or give a number."
        )
    return low + (high - low) * (numbers[0] * _GOLDEN % 1.0)
