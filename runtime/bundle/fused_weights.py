"""The weights of a graph with an adapter in them."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.adapter import FACTORS, Adapter, Factors, open_factors, place_of
from zeus_trt.runtime.bundle.initializers import Initializer, find_initializers
from zeus_trt.runtime.bundle.mixture import MixedFactors, Mixture
from zeus_trt.runtime.bundle.precision import QUANTIZED

if TYPE_CHECKING:
    from zeus_trt.runtime.bundle.bundle import Bundle

_ACTIVE = "Export the pipeline with the adapter active"


@dataclass(frozen=True)
class _Place:
    """An entry of ``parameters.json``."""

    initializer: str
    transposed: bool


@dataclass(frozen=True)
class _Parameters:
    """The content of ``parameters.json``."""

    format: int
    parameters: Mapping[str, _Place]


@dataclass(frozen=True)
class FusedWeight:
    """An initializer with its adapter.

    Args:
        initializer: Where its numbers are without adapter.
        parameters: The parameters of the denoiser that it holds.
        transposed: Whether it holds them transposed.
        value: Its numbers with the adapter, in its own shape and dtype.
    """

    initializer: Initializer
    parameters: tuple[str, ...]
    transposed: bool
    value: torch.Tensor

    def restore(self) -> torch.Tensor:
        """The numbers in the order of the parameter, (rows, ...) of a shape with as many."""
        return self.value.T.contiguous() if self.transposed else self.value


def fuse(bundle: "Bundle", precision: str | None = None, factors: Factors | None = None) -> dict[str, FusedWeight]:
    """The initializers of a graph that the bundle's adapter changes, by name: ``base + change``, rounded once.

    The sum is made in float32 on the CPU, so that it is the same for every engine.

    Args:
        bundle: A bundle with an adapter.
        precision: Of the graph; by default the first.
        factors: The tensors of the adapter; by default read from the bundle.

    Raises:
        ZeusError: The graph is quantized, or holds no separate weight for a parameter that the adapter changes.
    """
    adapter = bundle.adapter
    assert adapter
    graph = bundle.manifest.find_graph(precision)
    if graph.precision in QUANTIZED:
        raise ZeusError(
            f"adapter: got {adapter.name} for a graph in {graph.precision}, whose scales are those of its weights; "
            f"expected one in float. {_ACTIVE}, and quantize that bundle; or choose a graph in float."
        )
    places = _read_places(bundle, graph.file.rpartition("/")[0])
    if missing := [name for name in adapter.scaling if name not in places]:
        raise ZeusError(
            f"adapter: got {adapter.name}, which changes {missing[0]}{_count(missing)}; expected parameters that the "
            f"graph holds as they are: the exporter folded this one into others, or the denoiser has none such. "
            f"{_ACTIVE}."
        )
    sharing: dict[str, list[str]] = {}
    for name, place in places.items():
        sharing.setdefault(place.initializer, []).append(name)
    wanted = {places[name].initializer for name in adapter.scaling}
    path = bundle.graph(precision)
    try:
        found = find_initializers(path, wanted)
        with nullcontext(factors) if factors else _open(bundle, adapter) as opened:
            return {
                name: _fuse(name, found.get(name), {one: places[one] for one in sharing[name]}, adapter.scaling, opened)
                for name in sorted(wanted)
            }
    except (OSError, ValueError) as error:
        raise ZeusError(
            f"bundle: got {graph.file}, whose weights cannot be read ({error}); expected those that it names. Export "
            "the model again."
        ) from error


@contextmanager
def _open(bundle: "Bundle", adapter: Adapter | Mixture) -> Iterator[Factors | MixedFactors]:
    """The factors of an adapter, or of several, within a block."""
    with ExitStack() as files:
        opened = {
            name: files.enter_context(open_factors(bundle.file(f"{place_of(name)}/{FACTORS}")))
            for name in adapter.scales
        }
        yield adapter.mix(opened) if isinstance(adapter, Mixture) else opened[adapter.name]


def _read_places(bundle: "Bundle", folder: str) -> Mapping[str, _Place]:
    name = f"{folder}/parameters.json"
    return strict_json.parse(bundle.read(name), _Parameters, name, advice="Export the model again.").parameters


def _fuse(
    name: str,
    initializer: Initializer | None,
    places: Mapping[str, _Place],
    scaling: Mapping[str, float],
    factors: Factors | MixedFactors,
) -> FusedWeight:
    """One initializer, which all ``places`` share, with its change."""
    changed = [parameter for parameter in places if parameter in scaling]
    if initializer is None:
        raise ZeusError(f"adapter: got {changed[0]}, whose weight {name} has no numbers in float. {_ACTIVE}.")
    changes = [
        _orient(parameter, factors.multiply(parameter, scaling[parameter]), places[parameter].transposed, initializer)
        for parameter in changed
    ]
    other = [parameter for parameter in places if parameter not in changed]
    other += [p for p, change in zip(changed, changes, strict=True) if not torch.equal(change, changes[0])]
    if other:
        raise ZeusError(
            f"adapter: got a change of {changed[0]} that is not that of {other[0]}; expected the same of both, since "
            f"they are equal and share the weight {name} of the graph. {_ACTIVE}."
        )
    value = (initializer.read().float() + changes[0]).to(initializer.dtype)
    if not value.isfinite().all():
        raise ZeusError(
            f"adapter: got a change that takes {changed[0]} out of the range of {initializer.dtype}; expected numbers "
            "that it holds. Export the model in another precision, or make the adapter with a smaller scale."
        )
    return FusedWeight(initializer, tuple(places), places[changed[0]].transposed, value)


def _orient(parameter: str, change: torch.Tensor, transposed: bool, initializer: Initializer) -> torch.Tensor:
    """A change in the shape of its initializer."""
    if change.numel() != math.prod(initializer.shape) or (transposed and change.ndim != 2):
        raise ZeusError(
            f"adapter: got a change of {tuple(change.shape)} of {parameter}; expected as many numbers as its weight "
            f"has, {'x'.join(map(str, initializer.shape))}. Use an adapter of this model."
        )
    return (change.T if transposed else change).reshape(initializer.shape)


def _count(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
