"""The shapes that an engine takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec


@dataclass(frozen=True)
class ShapeRange:
    """Smallest, best and largest shape of one input; of an integer that sizes follow from, its one value."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError("a range of shapes has a smallest, best and largest of different axes")

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether every axis of ``shape`` is between the smallest and the largest."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        return "x".join(
            str(low) if low == high else f"{low}..{high}" for low, high in zip(self.min, self.max, strict=True)
        )


Profile = Mapping[str, ShapeRange]


def check_shapes(
    profile: Profile,
    shapes: Mapping[str, Sequence[int]],
    axes: Mapping[str, Sequence[int | str]] | None = None,
    symbols: Sequence[SymbolSpec] = (),
) -> None:
    """Refuses a request that the engine was not built for.

    Args:
        profile: What the engine takes, per input.
        shapes: What it is asked to take.
        axes: Names of the axes per input, for the message; the first is the batch.
        symbols: What these names are in pixels, for the message.

    Raises:
        ZeusError: An input is missing or unknown, or an axis is outside the profile.
    """
    if shapes.keys() != profile.keys():
        raise ZeusError(
            f"engine: got the inputs {sorted(shapes)}; expected {sorted(profile)}. Pass each of them by name."
        )
    for name, shape in shapes.items():
        wanted = profile[name]
        if wanted.takes(shape):
            continue
        if len(shape) != len(wanted.min):
            raise ZeusError(
                f"{name}: got the shape {tuple(shape)}; expected {wanted}. Pass a tensor with {len(wanted.min)} axes."
            )
        axis = next(i for i, size in enumerate(shape) if not wanted.min[i] <= size <= wanted.max[i])
        known = (axes or {}).get(name)
        symbol = known[axis] if known else "batch" if axis == 0 else axis
        spec = next((spec for spec in symbols if spec.name == symbol), SymbolSpec(str(symbol), ()))
        raise ZeusError(_describe(name, axis, shape[axis], wanted, symbol, spec))


def _describe(name: str, axis: int, size: int, wanted: ShapeRange, symbol: int | str, spec: SymbolSpec) -> str:
    low, high = wanted.min[axis], wanted.max[axis]
    takes = f"{spec.describe(low)}..{spec.describe(high)}" if low != high else spec.describe(low)
    title = symbol if isinstance(symbol, str) else f"axis {axis}"
    doubled = axis == 0 and size > high and size % 2 == 0
    reason = f" (guidance doubles the batch: 2 x {size // 2} = {size})" if doubled else ""
    advice = "Ask for fewer images at once, guide with one call per branch, or b" if doubled else "B"
    return (
        f"{name}: got {title} {spec.describe(size)}{reason}; expected {takes}, which this engine was built "
        f"for. {advice}uild an engine with a wider range."
    )
