"""Numbers that are asked for, and the most that is taken of each: refused before anything is allocated."""

import math
from collections.abc import Iterable
from itertools import islice
from numbers import Integral, Real
from typing import Any

from zeus_trt.errors import ZeusError

MAX_STEPS = 1_000_000
"""Most steps of a plan or a schedule: far more than any use needs."""

MAX_IMAGES = 65_536
"""Most images of a run."""


def check_count(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """Returns a whole number of any kind as a plain one.

    Raises:
        ZeusError: It is not whole, or out of range.
    """
    if not is_whole(value) or not least <= value <= most:
        wanted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ZeusError(f"{name}: got {show(value)}; expected a whole number {wanted}. Change it.")
    return int(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number of any kind; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether it is a real number of any kind that a float can hold; a bool is not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1024 bits
        return False


def show(value: Any) -> str:
    """A value of any kind for a message: short, and without reading a long one."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python writes no digits of very long ones
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if value is None or isinstance(value, str | bytes | int | float | Integral) else ""
    return text[:80] or type(value).__name__


def read_indices(full_steps: Any, num_steps: int) -> set[int]:
    """Steps as plain numbers, 0 to ``num_steps`` - 1; raises ZeusError for anything else."""
    if not isinstance(full_steps, Iterable):
        raise ZeusError(f"full_steps: got {show(full_steps)}; expected indices of steps. Give a list of them.")
    indices = set()
    for index in islice(full_steps, MAX_STEPS + 1):
        if not is_whole(index) or not 0 <= index < num_steps:
            raise ZeusError(f"full_steps: got {show(index)}; expected indices 0..{num_steps - 1}. Leave it out.")
        indices.add(int(index))
    return indices
