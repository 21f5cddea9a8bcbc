"""Windows: how much of a trajectory stays full at both ends."""

from numbers import Real
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import show

Window = tuple[float, float]

WINDOWS: dict[str, Window] = {"default": (0.2, 0.1), "flow": (0.14, 0.06), "none": (0.0, 0.0)}
"""Name of a window -> fractions of the steps that stay full at the start and at the end."""


def read_window(text: str) -> Window:
    """Reads the name of a window, or two fractions such as ``0.2,0.1``.

    Raises:
        ZeusError: Neither.
    """
    if text in WINDOWS:
        return WINDOWS[text]
    try:
        head, tail = (float(part) for part in text.split(","))
    except ValueError:
        raise ZeusError(
            f"window: got {text!r}; expected one of {', '.join(WINDOWS)}, or two fractions. Write it like 0.2,0.1."
        ) from None
    return check_window((head, tail))


def check_window(window: Any) -> Window:
    """Returns two fractions, or raises ZeusError for anything else."""
    fractions = window if isinstance(window, tuple | list) else ()
    if len(fractions) != 2 or not all(isinstance(f, Real) and 0.0 <= float(f) <= 1.0 for f in fractions):
        raise ZeusError(
            f"window: got {show(window) if not fractions else fractions[:9]}; expected two fractions between 0 and 1. "
            f"Use one of {', '.join(WINDOWS)}, or fractions such as (0.2, 0.1)."
        )
    return window
