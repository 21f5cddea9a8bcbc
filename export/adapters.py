"""A denoiser with its adapters in the weights that they change."""

from typing import Any

import torch

from zeus_trt.export.shallow_copy import shallow_copy

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def fuse_adapters(module: torch.nn.Module) -> Any:
    """A shallow copy whose weights hold the active adapters, under the names that they have without adapters.

    Args:
        module: The user's module, which is not touched. Layers of other libraries than peft are left as they are.
    """
    copied = shallow_copy(module)
    for name, layer in list(copied.named_modules()):
        base = getattr(layer, "base_layer", None)
        if not isinstance(base, torch.nn.Module) or not callable(getattr(layer, "merge", None)):
            continue
        active = [] if layer.disable_adapters or layer.merged_adapters else list(layer.active_adapters)
        if active:
            for kind, weight in list(base.named_parameters(recurse=False)):
                setattr(base, kind, torch.nn.Parameter(weight.detach().clone(), requires_grad=False))  # merge writes it
            layer.merge(adapter_names=active)
        for hooks in _HOOKS:
            getattr(base, hooks).update(getattr(layer, hooks))
        parent, _, child = name.rpartition(".")
        setattr(copied.get_submodule(parent), child, base)
    return copied
