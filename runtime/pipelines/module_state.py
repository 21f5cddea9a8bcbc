"""What decides a module's output beside its inputs, looked at in milliseconds."""

from collections.abc import Iterator
from typing import Any

import torch

from zeus_trt.runtime.pipelines.side_effects import unwrap

_SAMPLES = 8  # numbers looked at in each parameter: data written through ``.data`` has no other mark
_SUMMED = 2**18  # parameters of up to so many numbers are summed too, larger ones by a part
_PART = 2**10
_PLAIN = {bool, int, float, str, type(None), torch.dtype}
_TENSORS = {torch.Tensor, torch.nn.Parameter}
_OF_TORCH = vars(torch.nn.Module()).keys() - {"training"}
_HOOKED = {"forward", "_old_forward", "_hf_hook"}  # renewed at each run by hooks that move a module between devices
_DEPTH = 3


def read_state(module: Any) -> Any:
    """A value that differs after a change of weights, adapters, their scales, attention processors, layers or settings.

    Parameters are compared by identity, version, device and dtype, and by some of their numbers.
    """
    module = unwrap(module)
    parts = [(id(part), type(part), tuple(_read_settings(vars(part)))) for part in module.modules()]
    tensors = list(module.parameters())
    marks = [(id(tensor), tensor._version, tensor.device, tensor.dtype, tensor.shape) for tensor in tensors]
    return parts, marks, _sample(tensors)


def read_adapters(module: Any) -> dict[str, float]:
    """The scale of each adapter that changes a module's output, active or fused, by name.

    The scale is what ``set_adapters`` was given: 1 by default. Of an adapter with several scales it is their mean.
    """
    found: dict[str, list[float]] = {}
    for _, name, scale in list_scales(module):
        found.setdefault(name, []).append(scale)
    means = {name: sum(scales) / len(scales) for name, scales in sorted(found.items())}
    return {name: round(mean, 6) for name, mean in means.items() if mean}


def list_scales(module: Any) -> Iterator[tuple[str, str, float]]:
    """Each layer that an adapter changes, by the layer's name; the adapter's name; its scale there."""
    for path, layer in unwrap(module).named_modules():
        scaling = getattr(layer, "scaling", None)
        if not isinstance(scaling, dict) or not hasattr(layer, "active_adapters"):
            continue
        active = [] if getattr(layer, "disable_adapters", False) else list(layer.active_adapters)
        for name in {*active, *getattr(layer, "merged_adapters", ())} & scaling.keys():
            yield path, name, _read_scale(layer, name)


def _read_scale(layer: Any, name: str) -> float:
    alphas = getattr(layer, "lora_alpha", None) or getattr(layer, "alpha", {})  # of LoRA, and of LoKr and its like
    alpha, rank = alphas.get(name), getattr(layer, "r", {}).get(name)
    if not alpha or not rank:
        return float(layer.scaling[name])
    uses_root = getattr(layer, "use_rslora", {})
    divisor = rank**0.5 if isinstance(uses_root, dict) and uses_root.get(name) else rank
    return float(layer.scaling[name]) * divisor / alpha


def _read_settings(attributes: dict[str, Any]) -> Iterator[Any]:
    skipped = _HOOKED if "_hf_hook" in attributes else ()
    for name, value in attributes.items():
        if type(value) in _PLAIN:
            if name != "_is_full_backward_hook":
                yield name, value
        elif name in _OF_TORCH:
            if value and "forward" in name:
                yield name, *value  # the numbers of hooks
        elif name not in skipped:
            yield name, _freeze(value, _DEPTH)


def _freeze(value: Any, depth: int) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict) and depth:
        return tuple((key if isinstance(key, str) else id(key), _freeze(one, depth - 1)) for key, one in value.items())
    if isinstance(value, list | tuple | set) and depth:
        return tuple(_freeze(one, depth - 1) for one in value)
    is_processor = callable(value) and not isinstance(value, type | torch.nn.Module) and hasattr(value, "__dict__")
    return (id(value), _freeze(vars(value), depth - 1)) if is_processor and depth else id(value)


def _sample(tensors: list[torch.Tensor]) -> list[float]:
    by_kind: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        if not tensor.numel() or tensor.is_meta or type(tensor) not in _TENSORS or tensor.layout != torch.strided:
            continue
        data = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        part = data if data.numel() <= _SUMMED else _spread(data, _PART)
        total = part.sum(dtype=torch.float32)
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(_spread(data, _SAMPLES))
        by_kind.setdefault((tensor.device, torch.float32, "sum"), []).append(total[None])
    return [number for samples in by_kind.values() for number in torch.cat(samples).tolist()]


def _spread(data: torch.Tensor, number: int) -> torch.Tensor:
    """At most so many numbers of a tensor, from all over it."""
    data = data.permute(sorted(range(data.ndim), key=data.stride, reverse=True))  # channels last is contiguous so
    if not data.is_contiguous():
        return data.flatten()[:number]
    number = min(data.numel(), number)
    return data.as_strided((number,), (data.numel() // number,))
