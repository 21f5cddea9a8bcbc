"""What parts of a manifest must fulfil together: a manifest from anywhere is data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeus_trt.runtime.bundle.manifest import Manifest
    from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec

_GUIDANCE = ("batched", "sequential", "embedded", "none")
_OTHER_FLOATS = ("float16", "bfloat16", "float64")
_LARGEST = 1 << 31  # of a size
_LONGEST = 250  # characters of a file's name
_DIGEST = re.compile(r"([0-9a-f]{64})?")


def check_manifest(manifest: Manifest) -> None:
    """Raises ValueError where parts of a manifest do not fit each other; each part has checked itself."""
    _check_names("input", [spec.name for spec in manifest.inputs])
    _check_names("symbol", [symbol.name for symbol in manifest.symbols])
    if len(manifest.inputs) < 2 or len(manifest.latents.axes) < 2 or not manifest.inputs[1].axes:
        raise ValueError("its inputs do not begin with latents and a timestep of shape (batch,)")
    if not manifest.unsteppable and len(manifest.inputs[1].axes) != 1:
        raise ValueError("its timestep is not of shape (batch,), which a solver gives")
    if wide := [spec.name for spec in (*manifest.inputs, manifest.output) if spec.dtype in _OTHER_FLOATS]:
        raise ValueError(f"{wide[0]} has another floating-point type than float32")
    if not manifest.unsteppable and manifest.output.axes != manifest.latents.axes:
        raise ValueError("its output has other axes than the latents")
    axes = [axis for axis in (manifest.constant_axis, manifest.variance_axis) if axis is not None]
    if any(not 0 < axis < len(manifest.latents.axes) for axis in axes):
        raise ValueError("its constant_axis or variance_axis is no axis of the latents but the first")
    if (manifest.constant_axis is not None) != any(spec.role == "constant" for spec in manifest.inputs):
        raise ValueError("its constant_axis and the role of its inputs do not agree")
    kinds = [graph.precision for graph in manifest.graphs]
    if bool(kinds) == bool(manifest.foreign) or len(set(kinds)) < len(kinds):
        raise ValueError("it has no graph, or two of one precision, or one beside an engine of others")
    _check_foreign(manifest)
    if manifest.guidance not in _GUIDANCE:
        raise ValueError(f"its guidance is {manifest.guidance!r}, none of {', '.join(_GUIDANCE)}")
    if not all(_DIGEST.fullmatch(digest) for digest in (manifest.weights_sha256, manifest.adapters_sha256)):
        raise ValueError("its weights_sha256 or adapters_sha256 is no digest")
    _check_symbols(manifest)
    if wrong := [name for name in manifest.masks if name not in {spec.name for spec in manifest.inputs}]:
        raise ValueError(f"its masks have {wrong[0]!r}, which is no input")
    if manifest.layout and (not manifest.unsteppable or len(manifest.output.axes) != 2):
        raise ValueError("it has a layout for an output that is no (rows, numbers), or that a solver steps")
    if wrong := [name for name in manifest.networks if "/" in name or not is_plain_name(name)]:
        raise ValueError(f"its networks have {wrong[0]!r}, which is no name of a folder")
    if wrong := [name for name in manifest.files if not is_plain_name(name)]:
        raise ValueError(f"its files have {wrong[0]!r}, which is no path inside the folder")


def _check_foreign(manifest: Manifest) -> None:
    if (foreign := manifest.foreign) is None:
        return
    axes = {spec.name: spec.axes for spec in manifest.inputs}
    theirs = [spec for spec in foreign.inputs if spec.role != "timestep"]
    fits = all(axes.get(spec.name) == spec.axes for spec in theirs) and len(theirs) == len(axes) - 1
    if not fits or [spec.name for spec in theirs if spec.role == "latents"] != [manifest.latents.name]:
        raise ValueError("its foreign engine has other inputs than it says")


def check_sizes(name: str, *sizes: int) -> None:
    """Raises ValueError for a size that is not in 1..2^31 - 1."""
    if wrong := [size for size in sizes if not 1 <= size < _LARGEST]:
        raise ValueError(f"{name} has the size {wrong[0]}")


def is_plain_name(name: str) -> bool:
    """Whether ``name`` is a relative path in its shortest form that stays inside its folder, on any system."""
    plain = name.isprintable() and not set(name) & set('\\:*?"<>|') and len(name) <= _LONGEST
    return plain and all(part.strip(" ") == part and part not in ("", ".", "..") for part in name.split("/"))


def _check_names(kind: str, names: Sequence[str]) -> None:
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"it has an {kind} without a name, or two of one name")


def _check_symbols(manifest: Manifest) -> None:
    known = {symbol.name: symbol for symbol in manifest.symbols}
    specs = (*manifest.inputs, manifest.output, *(manifest.layout.tensors if manifest.layout else ()))
    named = {name for spec in specs for name in (*spec.axes, spec.value)}
    named |= {factor for symbol in manifest.symbols for factor in symbol.factors}
    if unknown := sorted(name for name in named if isinstance(name, str) and name not in known):
        raise ValueError(f"it has no symbol {', '.join(unknown)}")
    for symbol in manifest.symbols:
        _check_cycle(known, symbol)


def _check_cycle(known: Mapping[str, SymbolSpec], symbol: SymbolSpec) -> None:
    below, found = list(symbol.factors), set[str]()
    while below:
        factor = below.pop()
        if factor == symbol.name:
            raise ValueError(f"the symbol {symbol.name} is a factor of itself")
        if factor not in found:
            found.add(factor)
            below += known[factor].factors
