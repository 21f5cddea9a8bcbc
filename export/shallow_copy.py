"""A shallow copy of a module: another structure over the same weights."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from zeus_trt.runtime.pipelines.side_effects import unwrap


def shallow_copy(module: torch.nn.Module) -> Any:
    """Copies a module's structure and shares its weights.

    Whatever is done to the copy (patches, training flags, caches that ``forward`` fills) never reaches the user's
    module, and no second set of weights is held.

    Args:
        module: The user's module; of a compiled one, what was compiled.
    """
    return copy_structure(module, lambda tensor: tensor)


def copy_to_meta(module: torch.nn.Module) -> Any:
    """A copy without weights, on torch's ``meta`` device: it computes shapes only."""
    return copy_structure(module, _to_meta)


def copy_structure(module: torch.nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of a module with what ``replace`` gives for each parameter and buffer."""
    module = unwrap(module)
    return copy.deepcopy(module, {id(old): replace(old) for old in chain(module.parameters(), module.buffers())})


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    meta = tensor.detach().to("meta")
    return torch.nn.Parameter(meta, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else meta
