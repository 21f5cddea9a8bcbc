"""The tensors at the border of a denoiser, and the sizes that vary."""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any

from zeus_trt.runtime.bundle.manifest_check import check_sizes

AREA = "height x width"
OUTPUT_NAME = "model_output"
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")

_FRACTION = re.compile(r"-?[0-9]{1,12}(/[1-9][0-9]{0,11})?")


def name_dtype(tensor: Any) -> str:
    """Name of a torch tensor's dtype, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor at the border of the denoiser.

    Args:
        name: The name in the diffusers ``forward``, or ``model_output``.
        dtype: Name of a torch dtype, such as ``float32``.
        axes: One entry per axis: a fixed size, or the name of a symbol such as ``batch``.
        value: The symbol that an integer is the value of; None for tensors.
        role: ``latents``, ``timestep``, ``conditioning``, ``constant`` (channels that follow the latents and stay, such
            as mask and picture of inpainting), ``size`` (follows from the sizes alone, such as the positions of
            tokens) or ``fixed`` (never changed); ``output`` for the output.
    """

    name: str
    dtype: str
    axes: tuple[int | str, ...]
    role: str = "conditioning"
    value: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"{self.name} has the unknown dtype {self.dtype!r}")
        check_sizes(self.name, *(axis for axis in self.axes if isinstance(axis, int)))

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} ({', '.join(str(axis) for axis in self.axes)})"


@dataclass(frozen=True)
class SymbolSpec:
    """A size that varies.

    Args:
        name: Its name, as in the axes.
        observed: The sizes it was exported and verified at.
        multiple_of: What the size must be a multiple of.
        maximum: The largest size that the graph takes, None without a limit.
        factors: Symbols that it is a product of, empty for a plain size.
        scale: What that product is multiplied with, a fraction such as ``1/4``.
        setting: The argument of the pipeline that moves it; ``height x width`` where it is their product that does.
        unit: What one more of it is of that argument, such as 8 pixels.
        offset: The argument less all units: -3 where 13 frames of a video are 4 of its latents.
        minimum: The smallest size that the graph takes.
    """

    name: str
    observed: tuple[int, ...]
    multiple_of: int = 1
    maximum: int | None = None
    factors: tuple[str, ...] = ()
    scale: str = "1"
    setting: str = ""
    unit: str = "1"
    offset: str = "0"
    minimum: int = 1

    def __post_init__(self) -> None:
        check_sizes(self.name, *self.observed, self.multiple_of, 1 if self.maximum is None else self.maximum)
        if wrong := [text for text in (self.scale, self.unit, self.offset) if not _FRACTION.fullmatch(text)]:
            raise ValueError(f"{self.name} has {wrong[0]!r}, which is no fraction")
        if min(Fraction(self.scale), Fraction(self.unit)) <= 0:
            raise ValueError(f"{self.name} has a scale or unit that is not positive")

    def describe(self, size: int) -> str:
        """The size, and what it is in the pipeline's own terms: ``128 (1024 pixels)``."""
        asked = Fraction(self.unit) * size + Fraction(self.offset)
        if not self.setting or asked == size:
            return str(size)
        if self.setting in ("height", "width"):
            return f"{size} ({asked} pixels)"
        if self.setting == AREA:
            side = isqrt(round(asked))
            return f"{size} ({f'{side}x{side}' if side * side == asked else asked} pixels)"
        return f"{size} ({self.setting} {asked})"
