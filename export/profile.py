"""The shapes that an engine is built for, from the sizes that a user asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

_ENDS = ("min", "opt", "max")


@dataclass(frozen=True)
class SizeRange:
    """Smallest, best and largest value of a size that varies."""

    min: int
    opt: int
    max: int


BATCH = SizeRange(1, 1, 4)
"""Images at once, where nothing is asked."""


def make_profile(
    manifest: Manifest, ranges: Mapping[str, SizeRange] | None = None, guidance: bool | None = None
) -> dict[str, ShapeRange]:
    """The optimisation profile of a denoiser.

    Args:
        manifest: Its inputs and symbols.
        ranges: Sizes asked for, per symbol; that of the batch counts images. A symbol without one keeps to the sizes
            that it was exported at, the batch to 1..4, and a product to those of its factors.
        guidance: Whether classifier-free guidance may double the batch: the best and the largest batch become twice
            as large, the smallest stays, for calls without guidance. By default it may if the pipeline does so.

    Raises:
        ZeusError: A range of no symbol or of a product, or sizes that the graph does not take.
    """
    ranges = ranges or {}
    free = [symbol for symbol in manifest.symbols if not symbol.factors]
    if unknown := sorted(ranges.keys() - {symbol.name for symbol in free}):
        names = ", ".join(symbol.name for symbol in free) or "none, since no size of this model varies"
        raise ZeusError(f"ranges: got {unknown[0]}; expected {names}. Leave it out.")
    doubles = manifest.guidance == "batched" if guidance is None else guidance
    batch = manifest.latents.axes[0]
    sizes = {symbol.name: _choose(symbol, ranges, is_batch=symbol.name == batch, doubles=doubles) for symbol in free}
    sizes |= {symbol.name: _multiply(symbol, sizes) for symbol in manifest.symbols if symbol.factors}
    return {spec.name: ShapeRange(*(_measure(spec, end, sizes) for end in _ENDS)) for spec in manifest.inputs}


def _choose(symbol: SymbolSpec, ranges: Mapping[str, SizeRange], is_batch: bool, doubles: bool) -> SizeRange:
    seen = symbol.observed
    asked = ranges.get(symbol.name, BATCH if is_batch else SizeRange(min(seen), seen[0], max(seen)))
    if not 1 <= asked.min <= asked.opt <= asked.max:
        raise ZeusError(
            f"{symbol.name}: got {asked.min}, {asked.opt}, {asked.max}; expected 1 <= smallest <= best <= largest. "
            "Put them in order."
        )
    if is_batch and doubles:
        asked = SizeRange(asked.min, 2 * asked.opt, 2 * asked.max)
    _check(symbol, asked)
    return asked


def _multiply(symbol: SymbolSpec, sizes: Mapping[str, SizeRange]) -> SizeRange:
    ends = [prod(getattr(sizes[name], end) for name in symbol.factors) * Fraction(symbol.scale) for end in _ENDS]
    if broken := [end for end in ends if end.denominator != 1]:
        factors = " x ".join(symbol.factors)
        raise ZeusError(
            f"{symbol.name}: got {broken[0]} from {symbol.scale} x {factors}; expected a whole number. "
            f"Choose other sizes of {factors}."
        )
    product = SizeRange(*map(int, ends))
    _check(symbol, product)
    return product


def _check(symbol: SymbolSpec, asked: SizeRange) -> None:
    most = symbol.maximum
    if most is not None and asked.max > most:
        raise ZeusError(
            f"{symbol.name}: got {symbol.describe(asked.max)}; expected {symbol.describe(most)} or less, which is "
            "all that the graph takes. Ask for less."
        )
    if asked.min < symbol.minimum:
        raise ZeusError(
            f"{symbol.name}: got {symbol.describe(asked.min)}; expected {symbol.describe(symbol.minimum)} or more, "
            "which is all that the graph takes. Ask for more."
        )
    step = symbol.multiple_of
    for value in (asked.min, asked.opt, asked.max):
        if value % step:
            near = max(step, value // step * step)
            raise ZeusError(
                f"{symbol.name}: got {symbol.describe(value)}; expected a multiple of {symbol.describe(step)}. "
                f"Use {near}."
            )


def _measure(spec: TensorSpec, end: str, sizes: Mapping[str, SizeRange]) -> tuple[int, ...]:
    if spec.value:
        return (getattr(sizes[spec.value], end),)
    return tuple(getattr(sizes[axis], end) if isinstance(axis, str) else axis for axis in spec.axes)
