"""Conditioning as a person gives it: numbers, lists and arrays, of one row or of many."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec


def list_given(manifest: Manifest) -> dict[str, TensorSpec]:
    """The conditioning that a caller has to give by name: neither class labels nor the scale of guidance."""
    own = [name for name, has in (("class_labels", manifest.labels), ("guidance", manifest.guidance_factor)) if has]
    return {spec.name: spec for spec in manifest.inputs[2:] if spec.name not in own}


def choose_shape(manifest: Manifest) -> tuple[int, ...]:
    """Shape of the latents of one image: of a size that varies, the first at which the graph was verified."""
    sizes = {symbol.name: symbol.observed[0] for symbol in manifest.symbols}
    return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in manifest.latents.axes[1:])


def read_rows(specs: Mapping[str, TensorSpec], batch: int | str, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the axes and types of a model's conditioning.

    Args:
        specs: What the model takes, by name.
        batch: The first axis of inputs that have a row per image.
        given: Numbers, lists of them, arrays or tensors by name. An input with rows may be given without that axis:
            then it is one row.

    Raises:
        ZeusError: A name that the model does not have, one that is missing, or a value that is no tensor of its axes.
    """
    if unknown := [name for name in given if name not in specs]:
        raise ZeusError(
            f"inputs: got {unknown[0]}; expected {', '.join(map(str, specs.values())) or 'none'}, which the model "
            "takes. Leave it out, or name one of these."
        )
    if missing := [spec for name, spec in specs.items() if name not in given]:
        names = "; ".join(map(str, missing))
        raise ZeusError(f"inputs: got nothing for {names}; expected a value for each. Give what is missing.")
    return {name: read_row(specs[name], batch, value) for name, value in given.items()}


def read_some(specs: Mapping[str, TensorSpec], batch: int | str, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """As ``read_rows``, but any of them may be missing."""
    return read_rows({name: specs[name] for name in given} if given.keys() <= specs.keys() else specs, batch, given)


def read_row(spec: TensorSpec, batch: int | str, value: Any) -> torch.Tensor:
    """One input of ``read_rows``."""
    dtype = getattr(torch, spec.dtype)
    try:
        tensor = torch.as_tensor(value)
        if tensor.is_floating_point() and not dtype.is_floating_point and not bool((tensor == tensor.round()).all()):
            raise ValueError("it has fractions")
        tensor = tensor.to(dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ZeusError(
            f"inputs: got {spec.name}, which is no tensor of {spec.dtype} ({error}); expected {spec}. Change it."
        ) from error
    if spec.axes[:1] == (batch,) and tensor.ndim == len(spec.axes) - 1:
        tensor = tensor[None]
    sizes = zip(spec.axes, tensor.shape, strict=False)
    if tensor.ndim != len(spec.axes) or any(axis not in (size, str(axis)) or size < 1 for axis, size in sizes):
        raise ZeusError(f"inputs: got {spec.name} of shape {tuple(tensor.shape)}; expected {spec}. Change it.")
    return tensor


def take_rows(
    specs: Mapping[str, TensorSpec], batch: int | str, tensors: Mapping[str, torch.Tensor], numbers: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The conditioning of the images of these numbers: image k takes row k, in turn.

    Args:
        specs, batch: As in ``read_rows``, which made the ``tensors``.
        tensors: By name.
        numbers: From 0 on.
    """
    return {
        name: tensor[[number % len(tensor) for number in numbers]] if specs[name].axes[:1] == (batch,) else tensor
        for name, tensor in tensors.items()
    }


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, types, sizes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
