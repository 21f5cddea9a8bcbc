"""Several tensors that a network answers as one output of its graph, such as the residuals of a ControlNet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

PACKED = "numbers"
"""The axis of the output that has the numbers of all tensors."""
_DEPTH = 4


@dataclass(frozen=True)
class Layout:
    """How the output's rows are cut into tensors, and how these nest.

    Args:
        tensors: In their order in a row; their first axis is the rows.
        nesting: What the network answers: an integer is a place in ``tensors``, a list a tuple, an object a dict, whose
            keys are numbers where they look so, and None is itself.
    """

    tensors: tuple[TensorSpec, ...]
    nesting: Any

    def __post_init__(self) -> None:
        places = _list_places(self.nesting, _DEPTH)
        if not self.tensors or sorted(places) != [*range(len(self.tensors))]:
            raise ValueError("layout has a nesting that does not hold each of its tensors once")
        if any(len(spec.axes) < 2 for spec in self.tensors):
            raise ValueError("layout has a tensor without rows")

    def split(self, output: torch.Tensor, sizes: Mapping[str, int], symbols: Sequence[SymbolSpec]) -> Any:
        """What the network answers, of the graph's output (rows, numbers).

        Args:
            output: The output.
            sizes: Of the inputs, by symbol.
            symbols: All that vary.

        Raises:
            ZeusError: The output has another number of numbers.
        """
        known = {symbol.name: _find_size(symbol, sizes) for symbol in symbols if symbol.name != PACKED}
        shapes = [[known[axis] if isinstance(axis, str) else axis for axis in spec.axes[1:]] for spec in self.tensors]
        counts = [prod(shape) for shape in shapes]
        if sum(counts) != output.shape[1]:
            raise ZeusError(
                f"engine: got {output.shape[1]} numbers per row; expected {sum(counts)}, those of {len(shapes)} "
                "tensors at these sizes. Export the network again."
            )
        parts = output.split(counts, 1)
        tensors = [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]
        return _nest(self.nesting, tensors)


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors (rows, ...) side by side, as one of (rows, numbers)."""
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1)


def _find_size(symbol: SymbolSpec, sizes: Mapping[str, int]) -> int:
    if symbol.name in sizes or not symbol.factors:
        return sizes[symbol.name]
    return int(prod(sizes[name] for name in symbol.factors) * Fraction(symbol.scale))


def _nest(nesting: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(nesting, Mapping):
        return {int(key) if key.isdecimal() else key: _nest(part, tensors) for key, part in nesting.items()}
    if isinstance(nesting, list | tuple):
        return tuple(_nest(part, tensors) for part in nesting)
    return None if nesting is None else tensors[nesting]


def _list_places(nesting: Any, depth: int) -> list[int]:
    if nesting is None or type(nesting) is int:
        return [] if nesting is None else [nesting]
    if not depth or not isinstance(nesting, list | tuple | Mapping):
        raise ValueError(f"layout has {type(nesting).__name__} in its nesting")
    parts = nesting.values() if isinstance(nesting, Mapping) else nesting
    return [place for part in parts for place in _list_places(part, depth - 1)]
