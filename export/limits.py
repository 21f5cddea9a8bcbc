"""What tracing is told about sizes, and what it finds out about them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import torch

from zeus_trt.export.capture import Capture


@dataclass(frozen=True)
class Limits:
    """What a traced graph asks of a size.

    Args:
        multiple_of: The size must be a multiple of it.
        maximum: The largest size, None if there is none. A batch has none: torch compares it when it chooses kernels,
            which the graph does not keep.
    """

    multiple_of: int = 1
    maximum: int | None = None


def tie_sizes(captured: Capture, values: Sequence[Any]) -> None:
    """Tells the exporter which sizes are equal, and which are products of others."""
    sizes: dict[str, Any] = {}
    for name, size in _list_sizes(captured, values):
        torch._check(size == sizes.setdefault(name, size))
    for symbol in captured.symbols:
        if symbol.factors and symbol.name in sizes:
            whole = symbol.scale.numerator
            for factor in symbol.factors:
                whole = whole * sizes[factor]
            torch._check(sizes[symbol.name] * symbol.scale.denominator == whole)


def read_limits(captured: Capture, program: torch.export.ExportedProgram) -> dict[str, Limits]:
    """The limits of each symbol, read off the conditions that tracing met on its way."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(captured.inputs) :]
    sizes = dict(_list_sizes(captured, [node.meta["val"] for node in nodes]))
    limits = {name: _read_limit(size.node.expr, size.node.shape_env) for name, size in sizes.items()}
    batch = captured.inputs[0].axes[0]
    return {name: replace(limit, maximum=None) if name == batch else limit for name, limit in limits.items()}


def _read_limit(size: Any, environment: Any) -> Limits:
    import sympy
    from torch.utils._sympy.functions import Mod, PythonMod

    multiple = 1
    for guard in environment.guards:
        if isinstance(guard.expr, sympy.Eq) and guard.expr.rhs == 0 and isinstance(guard.expr.lhs, Mod | PythonMod):
            dividend, divisor = guard.expr.lhs.args
            if dividend == size and divisor.is_Integer:
                multiple = lcm(multiple, int(divisor))
    maximum = environment.bound_sympy(size).upper
    return Limits(multiple, int(maximum) if maximum.is_Integer else None)


def _list_sizes(captured: Capture, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every size that varies, under its symbol; a symbol comes once per axis that has it."""
    for spec, value in zip(captured.inputs, values, strict=True):
        if spec.value:
            yield spec.value, value
        yield from ((axis, value.shape[place]) for place, axis in enumerate(spec.axes) if isinstance(axis, str))
