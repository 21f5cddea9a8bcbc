"""Checking tensors against a manifest, before anything runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import check_sizes
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec


class Sizes:
    """The sizes of one request by symbol, read off its tensors.

    Args:
        symbols: The sizes that vary, with their limits.
        relations: What they must satisfy together.
        batch: The symbol of the images, whose limits are not looked at: guidance may double it for the graph.
    """

    def __init__(self, symbols: Sequence[SymbolSpec], relations: Sequence[Relation] = (), batch: int | str = ""):
        self._symbols = [symbol for symbol in symbols if batch not in (symbol.name, *symbol.factors)]
        self._relations = [relation for relation in relations if batch not in relation.names]
        self._known: dict[str, int] = {}

    def check(self, spec: TensorSpec, tensor: Any, free: bool = False) -> None:
        """Refuses a tensor that is not what ``spec`` says, or does not fit those before it.

        Args:
            spec: Name, type and axes.
            tensor: What was given.
            free: Its sizes bind no later tensor, and only its first axis must fit those before.

        Raises:
            ZeusError: Another type, rank or size, or a number that is not finite.
        """
        _check_type(spec, tensor)
        if tensor.ndim != len(spec.axes):
            raise ZeusError(
                f"{spec.name}: got the shape {tuple(tensor.shape)}; expected axes ({', '.join(map(str, spec.axes))}). "
                "Change it."
            )
        own: dict[str, int] = {}
        for place, (axis, size) in enumerate(zip(spec.axes, tensor.shape, strict=True)):
            if isinstance(axis, str):
                own[axis] = size
            if free and place and isinstance(axis, str):
                continue
            expected = axis if isinstance(axis, int) else self._known.setdefault(axis, size)
            if size != expected or size < 1:
                raise ZeusError(
                    f"{spec.name}: got {size} for {axis if isinstance(axis, str) else f'axis {place}'}; expected "
                    f"{max(expected, 1)}. Change it, or what it belongs to."
                )
        check_sizes(self._symbols, self._relations, {**self._known, **own})
        if tensor.is_floating_point() and not bool(_is_usable(spec.name, tensor).all()):
            raise ZeusError(f"{spec.name}: got NaN or infinity; expected numbers. Look at where it was made.")


def _is_usable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Numbers; in masks that are added to attention scores also minus infinity."""
    return tensor.isfinite() | (tensor == -math.inf) if "mask" in name else tensor.isfinite()


def list_conditioning(manifest: Manifest) -> dict[str, TensorSpec]:
    """The inputs of a model besides latents and timestep, by name."""
    return {spec.name: spec for spec in manifest.inputs[2:]}


def check_names(thing: str, given: Any, expected: Mapping[str, TensorSpec], optional: Sequence[str] = ()) -> None:
    """Refuses unexpected and missing names; ``optional`` ones may be missing."""
    names = {*given}
    if names - expected.keys() or expected.keys() - names - {*optional}:
        raise ZeusError(
            f"{thing}: got {sorted(map(str, names))}; expected {sorted(expected)}. Pass each of them by name."
        )


def check_labels(manifest: Manifest, name: str, labels: torch.Tensor) -> None:
    """Refuses classes that the model does not know."""
    known = manifest.labels
    if known is None or name != "class_labels":
        return
    wrong = labels[(labels < 0) | (labels > max(known.null, known.count - 1))]
    if len(wrong):
        raise ZeusError(
            f"label: got {int(wrong[0])}; expected 0..{known.count - 1}, or {known.null} for no class. "
            "Choose one of these."
        )


def count_rows(spec: TensorSpec, tensor: Any) -> int:
    """Length of the first axis of a tensor of conditioning."""
    _check_type(spec, tensor)
    return len(tensor) if tensor.ndim else 1


def _check_type(spec: TensorSpec, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ZeusError(f"{spec.name}: got {type(tensor).__name__}; expected a tensor. Change it.")
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "one without values" if tensor.is_meta else f"a {str(tensor.layout).removeprefix('torch.')} tensor"
        raise ZeusError(f"{spec.name}: got {kind}; expected a dense tensor. Make it one.")
    wants_float = getattr(torch, spec.dtype).is_floating_point
    if tensor.is_complex() or (tensor.is_floating_point() and not wants_float):
        raise ZeusError(
            f"{spec.name}: got {tensor.dtype}; expected {spec.dtype}. A cast would change its values: make it right."
        )
