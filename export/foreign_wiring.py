"""Which tensor of a foreign graph is which, and the sizes to try it at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.foreign_model import BATCH, ForeignModel
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import SizeRules, check_sizes
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.rows import read_some

TIMESTEP = "timestep"
_UNKNOWN = 8  # size of an axis of conditioning that nothing says


@dataclass(frozen=True)
class Wiring:
    """Which tensor of a foreign graph is which.

    Args:
        latents, timestep, conditioning: Its inputs, with its own types; axes have the bundle's names.
        output: The name of its output.
        by_rows: Whether it is called for one row at a time: its timestep or its batch has room for one only.
        symbols, relations: What it asks of its sizes, as far as it says so.
    """

    latents: TensorSpec
    timestep: TensorSpec
    conditioning: tuple[TensorSpec, ...]
    output: str
    by_rows: bool = False
    symbols: tuple[SymbolSpec, ...] = ()
    relations: tuple[Relation, ...] = ()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The bundle's inputs: floating-point ones are float32."""
        first = TensorSpec(self.latents.name, "float32", self.latents.axes, "latents")
        return (first, TensorSpec(TIMESTEP, "float32", (BATCH,), "timestep"), *map(widen, self.conditioning))

    def has_rows(self, spec: TensorSpec) -> bool:
        """Whether an input has a row per image."""
        return spec.axes[:1] == (BATCH,)

    def fix(self, sizes: Mapping[str, int]) -> "Wiring":
        """The same, with sizes instead of the names of some axes."""
        return self._rename(lambda axis: sizes.get(str(axis), axis))

    def give_rows(self) -> "Wiring":
        """The same with a row per image in all conditioning whose first axis has a name."""
        first = {spec.axes[0] for spec in self.conditioning if spec.axes and isinstance(spec.axes[0], str)}
        return self._rename(lambda axis: BATCH if axis in first else axis)

    def _rename(self, rename: Callable[[int | str], int | str]) -> "Wiring":
        def change(spec: TensorSpec) -> TensorSpec:
            return replace(spec, axes=tuple(rename(axis) for axis in spec.axes))

        symbols = {name: replace(spec, name=name) for spec in reversed(self.symbols)
                   if isinstance(name := rename(spec.name), str)}  # fmt: skip
        relations = (relation.rename(rename) for relation in self.relations)
        return replace(
            self, latents=change(self.latents), conditioning=tuple(map(change, self.conditioning)),
            symbols=tuple(symbols.values()), relations=tuple(one for one in relations if one.names),
        )  # fmt: skip

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether the graph says nothing against sizes."""
        try:
            check_sizes(self.symbols, self.relations, sizes)
        except ZeusError:
            return False
        return True


def wire(graph: ForeignModel, latents: str, timestep: str) -> Wiring:
    """Finds latents and timestep among the inputs; all others are conditioning.

    A batch that is fixed at one row, or a timestep with room for one, has the graph called by rows.

    Args:
        graph: The foreign graph.
        latents, timestep: The inputs' names.

    Raises:
        ZeusError: A name that the graph does not have, latents that are no floating-point rows, or a batch that is
            fixed at another number than 1.
    """
    noisy, time = graph.find("latents", latents), graph.find("timestep", timestep)
    rest = [spec for spec in graph.inputs if spec.name not in (latents, timestep)]
    if TIMESTEP in (latents, *(spec.name for spec in rest)):
        raise ZeusError(
            f"timestep: got {timestep!r} of a graph that has another input timestep; expected that. Name it, or rename "
            "the inputs."
        )
    if "float" not in noisy.dtype or len(noisy.axes) < 2:
        raise ZeusError(f"latents: got {noisy}; expected a floating-point tensor with a row per image. Name another.")
    batch = noisy.axes[0]
    fixed = [spec for spec in (noisy, time) if spec.axes and isinstance(spec.axes[0], int) and spec.axes[0] != 1]
    if fixed:
        raise ZeusError(
            f"{'latents' if fixed[0] is noisy else 'timestep'}: got {fixed[0]}, a batch of {fixed[0].axes[0]}; "
            "expected an axis that is dynamic, or 1. Export the graph again with a dynamic batch."
        )
    rules = graph.rules or SizeRules({})
    wiring = Wiring(
        noisy, time, tuple(rest), graph.outputs[0], 1 in (batch, *time.axes[:1]) or not time.axes, rules.symbols,
        rules.relations,
    )  # fmt: skip
    wiring = wiring._rename(lambda axis: f"{BATCH}_" if axis == BATCH != batch else axis)
    if isinstance(batch, str):
        return wiring._rename(lambda axis: BATCH if axis == batch else axis)
    return replace(
        wiring, latents=_open_first(wiring.latents), conditioning=tuple(map(_open_first, wiring.conditioning))
    )


def _open_first(spec: TensorSpec) -> TensorSpec:
    return replace(spec, axes=(BATCH, *spec.axes[1:])) if spec.axes[:1] == (1,) else spec


def read_examples(wiring: Wiring, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the conditioning that is given; errors as ``read_rows``, but for what is missing."""
    specs = {spec.name: spec for spec in wiring.inputs[2:]}
    return read_some(specs, BATCH, given)


def choose_sizes(
    wiring: Wiring, shape: Sequence[int] | None, examples: Mapping[str, torch.Tensor], known: Mapping[str, int]
) -> dict[str, int]:
    """A size for every name among the axes: one row, the latents that are asked for, conditioning as given.

    Args:
        wiring: The graph's tensors.
        shape: Of one of the latents; by default that of ``known``.
        examples: Conditioning that is given.
        known: Sizes of axes that the graph was made at, where it says so.

    Raises:
        ZeusError: A shape that is missing or does not fit the graph.
    """
    axes = wiring.latents.axes[1:]
    if shape is None and known.keys() >= {axis for axis in axes if isinstance(axis, str)}:
        shape = [known[axis] if isinstance(axis, str) else axis for axis in axes]
    if shape is None and any(isinstance(axis, str) for axis in axes):
        raise ZeusError(
            f"shape: got nothing for {wiring.latents}, which leaves sizes open; expected the sizes of one of the "
            f"latents, {len(axes)} numbers. Give them."
        )
    asked: tuple[int | str, ...] = axes if shape is None else tuple(shape)
    pairs = {*zip(axes, asked, strict=False)}
    is_same = len({axis for axis, _ in pairs}) == len(pairs)  # an axis that comes twice has one size
    if len(asked) != len(axes) or not is_same or any(axis not in (size, str(axis)) for axis, size in pairs):
        raise ZeusError(
            f"shape: got {','.join(map(str, asked))}; expected that of {wiring.latents} without its batch. Change it."
        )
    sizes = {BATCH: 1} | {axis: int(size) for axis, size in zip(axes, asked, strict=True) if isinstance(axis, str)}
    for spec in wiring.conditioning:
        given = examples.get(spec.name)
        for place, axis in enumerate(spec.axes):
            if isinstance(axis, str):
                sizes.setdefault(axis, known.get(axis, _UNKNOWN) if given is None else given.shape[place])
    check_sizes(wiring.symbols, wiring.relations, sizes)
    return sizes


def widen(spec: TensorSpec) -> TensorSpec:
    """A tensor as bundles have it: float32 for any floating-point type."""
    return replace(spec, dtype="float32" if "float" in spec.dtype else spec.dtype)
