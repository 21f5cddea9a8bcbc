"""Windows: how much of a trajectory stays full at both ends."""

import math
import re
from dataclasses import dataclass
from numbers import Real
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_STEPS, check_count, show

_END = re.compile(r"(first|last|from):([0-9]{1,9})")


@dataclass(frozen=True)
class Ends:
    """Numbers of steps that stay full, the same for every length of the trajectory.

    Args:
        first: So many steps at the start; the last of them is the full step of the first block.
        last: So many steps at the end.
        begin: All steps from this index on, instead of ``last``; ``from`` in its text.

    Raises:
        ZeusError: A number out of range, or both ``last`` and ``begin``.
    """

    first: int = 2
    last: int = 1
    begin: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("first", self.first), ("last", self.last), ("from", self.begin)):
            if value is not None:
                check_count(name, value, 0, MAX_STEPS)
        if self.begin is not None and self.last != 1:
            raise ZeusError(
                f"window: got last:{self.last} beside from:{self.begin}; expected one of them, since each says where "
                "the end begins. Leave one out."
            )

    def __str__(self) -> str:
        return f"first:{self.first}," + (f"last:{self.last}" if self.begin is None else f"from:{self.begin}")


Window = tuple[float, float] | Ends
"""Fractions of the steps that stay full at the start and at the end, or numbers of them."""

WINDOWS: dict[str, tuple[float, float]] = {"default": (0.2, 0.1), "flow": (0.14, 0.06), "none": (0.0, 0.0)}
"""Name of a window -> fractions of the steps that stay full at the start and at the end."""

_EXPECTED = f"expected one of {', '.join(WINDOWS)}, two fractions between 0 and 1, or numbers of steps"
_EXAMPLES = "0.2,0.1 or like first:11,last:5"


def read_window(text: str) -> Window:
    """Reads a window.

    Args:
        text: A name of ``WINDOWS``; two fractions such as ``0.2,0.1``; or numbers of steps: ``first:11`` (steps 0 to 10
            are full), ``last:5``, ``from:45`` (step 45 and all later ones), or ``first`` beside one of the others.

    Raises:
        ZeusError: None of these.
    """
    if text in WINDOWS:
        return WINDOWS[text]
    parts = [part.strip() for part in text.split(",")]
    ends = {found[1]: int(found[2]) for part in parts if (found := _END.fullmatch(part))}
    if len(ends) == len(parts):
        return Ends(**{"begin" if name == "from" else name: number for name, number in ends.items()})
    try:
        head, tail = (float(part) for part in parts)
    except ValueError:
        raise ZeusError(f"window: got {show(text)}; {_EXPECTED}. Write it like {_EXAMPLES}.") from None
    return check_window((head, tail))


def check_window(window: Any) -> Window:
    """Returns a window, or raises ZeusError for anything else than two fractions or ``Ends``."""
    if isinstance(window, Ends):
        return window
    fractions = window if isinstance(window, tuple | list) else ()
    if len(fractions) != 2 or not all(isinstance(f, Real) and 0.0 <= float(f) <= 1.0 for f in fractions):
        raise ZeusError(
            f"window: got {show(window) if not fractions else fractions[:9]}; {_EXPECTED}. Use a name, fractions such "
            "as (0.2, 0.1), or Ends(first=11, last=5)."
        )
    return window


def place_window(window: Window, length: int) -> tuple[int, int]:
    """The full step of the first block, and the first step of the full end, in a trajectory of ``length`` steps.

    Step 0 and the last step are always full, besides the first block's.

    Raises:
        ZeusError: No window.
    """
    window = check_window(window)
    if isinstance(window, Ends):
        high = length - max(window.last, 1)
        return max(window.first - 1, 1), high if window.begin is None else min(window.begin, high)
    head, tail = (_ceil(fraction, length) for fraction in window)
    return max(head, 1), length - max(tail, 1)


def _ceil(fraction: float, length: int) -> int:
    return math.ceil(fraction * length - 1e-9)  # 0.14 * 50 is 7.000000000000001
