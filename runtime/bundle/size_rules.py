"""What a graph asks of the sizes of a call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec
from zeus_trt.runtime.denoiser import Denoiser

METADATA = "zeus_trt.sizes"
"""Key of the rules among the metadata of an ONNX graph."""


@dataclass(frozen=True)
class SizeRules:
    """The rules of one graph.

    Args:
        axes: Of each input a size or a symbol's name per axis.
        values: The symbol that an integer input is the value of, by its name.
        symbols: The sizes that vary, with their limits.
        relations: What they must satisfy together.

    Raises:
        ZeusError: A relation of a size that no input has.
    """

    axes: Mapping[str, tuple[int | str, ...]]
    values: Mapping[str, str] = field(default_factory=dict)
    symbols: tuple[SymbolSpec, ...] = ()
    relations: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        known = {symbol.name for symbol in self.symbols}
        for relation in self.relations:
            if unknown := sorted(relation.names - known):
                raise ZeusError(
                    f"relation: got {relation}, of {unknown[0]}; expected sizes that the inputs have, "
                    f"{', '.join(sorted(known))}. Export the model again."
                )

    @classmethod
    def of(cls, manifest: Manifest) -> "SizeRules":
        """The rules of a bundle's graph."""
        axes = {spec.name: spec.axes for spec in manifest.inputs}
        values = {spec.name: spec.value for spec in manifest.inputs if spec.value}
        return cls(axes, values, tuple(manifest.symbols), tuple(manifest.relations))

    def measure(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The size of each symbol in one call.

        Args:
            inputs: Tensors and integers by name; a timestep of shape () or (1,) serves every row.

        Raises:
            ZeusError: Inputs of other axes, or that disagree in a size.
        """
        sizes: dict[str, int] = {}
        for name, value in inputs.items():
            if name in self.values:
                found = {self.values[name]: int(value)}
            elif not isinstance(value, torch.Tensor) or (name == "timestep" and value.numel() == 1):
                continue
            else:
                axes = self.axes.get(name, ())
                _check_axes(name, axes, value)
                found = {axis: size for axis, size in zip(axes, value.shape, strict=False) if isinstance(axis, str)}
            for symbol, size in found.items():
                if sizes.setdefault(symbol, size) != size:
                    raise ZeusError(
                        f"{name}: got {size} for {symbol}; expected {sizes[symbol]}. Change it, or what it belongs to."
                    )
        return sizes

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Refuses a call at sizes that the graph is not made for.

        Args:
            inputs: As in ``measure``.

        Raises:
            ZeusError: As ``check_sizes``, or inputs that disagree in a size.
        """
        check_sizes(self.symbols, self.relations, self.measure(inputs))

    def allow(self, inputs: Mapping[str, Any]) -> bool:
        """Whether ``check`` lets a call pass."""
        try:
            self.check(inputs)
        except ZeusError:
            return False
        return True

    def guard(self, denoiser: Denoiser) -> Denoiser:
        """The denoiser, each of its calls checked before it runs."""

        def guarded(**inputs: torch.Tensor) -> torch.Tensor:
            self.check(inputs)
            return denoiser(**inputs)

        return guarded

    def to_json(self) -> str:
        """The rules as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "SizeRules":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: It is nothing of the kind.
        """
        try:
            data = json.loads(text)
            return cls(
                {name: tuple(axes) for name, axes in data["axes"].items()},
                dict(data["values"]),
                tuple(SymbolSpec(**_to_tuples(entry)) for entry in data["symbols"]),
                tuple(Relation(**_to_tuples(entry)) for entry in data["relations"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ZeusError(
                f"sizes: got rules in the graph that do not fit ({error}); expected those of zeus-trt. "
                "Export the model again."
            ) from error


def check_sizes(symbols: Sequence[SymbolSpec], relations: Sequence[Relation], sizes: Mapping[str, int]) -> None:
    """Refuses sizes that the graph is not made for.

    Args:
        symbols: The sizes that vary, with their limits.
        relations: What they must satisfy together.
        sizes: By symbol. Limits, products and relations of sizes that are not known yet are left out.

    Raises:
        ZeusError: A size outside of its limits, a product that does not fit, or a relation that does not hold.
    """
    specs = {symbol.name: symbol for symbol in symbols}
    for name, size in sizes.items():
        if name in specs:
            _check_limits(specs[name], size)
    for symbol in symbols:
        if symbol.factors and {symbol.name, *symbol.factors} <= sizes.keys():
            whole = prod(sizes[name] for name in symbol.factors) * Fraction(symbol.scale)
            if whole != sizes[symbol.name]:
                factors = " x ".join((*(() if symbol.scale == "1" else (symbol.scale,)), *symbol.factors))
                raise ZeusError(
                    f"{symbol.name}: got {sizes[symbol.name]}; expected {whole}, {factors}. Change it, or its factors."
                )
    for relation in relations:
        if relation.names <= sizes.keys() and not relation.holds(sizes):
            got = ", ".join(f"{name} {specs[name].describe(sizes[name])}" for name in sorted(relation.names))
            where = f" ({relation.origin})" if relation.origin else ""
            raise ZeusError(
                f"sizes: got {got}; expected {relation}, which the model branches on{where} and its export was made "
                "for. Choose other sizes, or export the model at sizes like these."
            )


def _check_axes(name: str, axes: Sequence[int | str], value: torch.Tensor) -> None:
    fits = len(axes) == value.ndim and all(
        size == axis or isinstance(axis, str) for axis, size in zip(axes, value.shape, strict=True)
    )
    if axes and not fits:
        raise ZeusError(
            f"{name}: got the shape {tuple(value.shape)}; expected axes ({', '.join(map(str, axes))}). Change it."
        )


def _check_limits(symbol: SymbolSpec, size: int) -> None:
    least, most, step = symbol.minimum, symbol.maximum, symbol.multiple_of
    if size % step == 0 and size >= least and (most is None or size <= most):
        return
    asked = [f"a multiple of {symbol.describe(step)}"] if step > 1 else []
    asked += [f"at least {symbol.describe(least)}"] if least > 1 else []
    asked += [] if most is None else [f"up to {symbol.describe(most)}"]
    raise ZeusError(
        f"{symbol.name}: got {symbol.describe(size)}; expected {', '.join(asked) or 'at least 1'}, which is what the "
        "model takes. Change it."
    )


def _to_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
