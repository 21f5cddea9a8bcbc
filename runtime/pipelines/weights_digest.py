"""Which weights and adapters a denoiser has, as digests: the same on every device, and in every process."""

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from zeus_trt.runtime.bundle.adapter import Adapter
from zeus_trt.runtime.bundle.manifest import Graph
from zeus_trt.runtime.bundle.mixture import Mixture, digest_parts
from zeus_trt.runtime.bundle.precision import FLOATS
from zeus_trt.runtime.bundle.tensor_spec import name_dtype
from zeus_trt.runtime.pipelines.module_state import list_scales, read_adapters
from zeus_trt.runtime.pipelines.side_effects import unwrap

_FLOATS = [precision.dtype for precision in FLOATS]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_BASE = ".base_layer."  # of peft's layers


def digest_weights(
    denoiser: Any, graph: Graph | None = None, adapter: Adapter | Mixture | None = None
) -> tuple[str, str]:
    """SHA-256 of a module's weights, and of its active adapters' weights and scales; the second empty without one.

    Each is over names, dtypes, shapes and bytes, in the order of the names. The weights have the same names and digest
    with and without adapters, unless one is fused.

    Args:
        denoiser: The module. It is not touched.
        graph: Digest the weights as they are in this graph, cast to its precision.
        adapter: As in ``digest_adapters``.
    """
    module = unwrap(denoiser)
    wrapped = _list_wrapped(module)
    own = {
        name: tensor for name, tensor in module.state_dict().items() if not name.startswith(wrapped) or _BASE in name
    }
    return _digest(own, _choose(module, graph)), digest_adapters(denoiser, graph, adapter)


def digest_adapters(denoiser: Any, graph: Graph | None = None, adapter: Adapter | Mixture | None = None) -> str:
    """The second of ``digest_weights``; the module's own weights are not read, and may be on the meta device.

    It is made to be compared with the digest of ``adapter``: that of a mixture is of its adapters one by one.
    """
    if isinstance(adapter, Mixture):
        return digest_parts(
            adapter, lambda part: _digest_active(denoiser, graph, {part.name: part.scale / adapter.scales[part.name]})
        )
    return _digest_active(denoiser, graph) if read_adapters(unwrap(denoiser)) else ""


def _digest_active(denoiser: Any, graph: Graph | None, factors: Mapping[str, float] | None = None) -> str:
    """The digest of active adapters: of all, or of those in ``factors``, which their scales are multiplied with."""
    module = unwrap(denoiser)
    wrapped, names = _list_wrapped(module), (factors or read_adapters(module)).keys()
    active = {
        name: tensor
        for name, tensor in module.state_dict().items()
        if name.startswith(wrapped) and _BASE not in name and names & {*name.split(".")}
    }
    scales = [
        f"{layer} {name} {scale * (factors[name] if factors else 1.0):.6g}"
        for layer, name, scale in list_scales(module)
        if not factors or name in factors
    ]
    return _digest(active, _choose(module, graph), "\n".join(sorted(scales)))


def may_digest(denoiser: Any) -> bool:
    """Whether the weights of a module can be read: they are neither offloaded nor in the format of a quantizer."""
    tensors = unwrap(denoiser).state_dict().values()
    return all(type(tensor) in _PLAIN and not tensor.is_meta and tensor.layout == torch.strided for tensor in tensors)


def choose_dtypes(module: torch.nn.Module, dtype: torch.dtype, keep_fp32: Sequence[str] = ()) -> dict[str, torch.dtype]:
    """The dtype of each weight of a module in a graph of this dtype, by name in its state dict.

    Args:
        module: The module; what diffusers itself keeps in float32 (``_keep_in_fp32_modules``) stays so.
        dtype: Of the graph.
        keep_fp32: Patterns of names of modules that are float32 in it.
    """
    own = set(getattr(module, "_keep_in_fp32_modules", None) or ())

    def is_kept(name: str) -> bool:
        parts = name.split(".")
        inside = [".".join(parts[:end]) for end in range(1, len(parts))]
        return bool(own & {*parts}) or any(fnmatchcase(block, pattern) for block in inside for pattern in keep_fp32)

    return {name: torch.float32 if is_kept(name) else dtype for name in module.state_dict()}


def _choose(module: torch.nn.Module, graph: Graph | None) -> dict[str, torch.dtype]:
    return choose_dtypes(module, graph.precision.dtype, graph.keep_fp32) if graph else {}


def _list_wrapped(module: torch.nn.Module) -> tuple[str, ...]:
    """How the names of weights in layers of adapters begin."""
    return tuple(f"{name}." for name, part in module.named_modules() if hasattr(part, "base_layer"))


def _digest(tensors: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype], more: str = "") -> str:
    digest = hashlib.sha256(more.encode())
    for public, name in sorted((name.replace(_BASE, "."), name) for name in tensors):
        tensor = tensors[name].detach()
        if tensor.dtype in _FLOATS:
            tensor = tensor.to(dtypes.get(name, tensor.dtype))
        digest.update(f"{public} {name_dtype(tensor)} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
