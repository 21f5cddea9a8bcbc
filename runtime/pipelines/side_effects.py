"""What a call of a module leaves behind beside its output: attention maps that a pipeline reads later."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

_PARTS = {"_parameters", "_buffers", "_modules"}
_DEPTH = 5  # of what a processor keeps: a store, its dict, a list in it, a tensor


def find_kept(module: torch.nn.Module) -> dict[tuple[int, int], torch.Tensor]:
    """The tensors that the attention in a module keeps, parameters and buffers aside.

    These are attributes of modules with an attention processor, and what the processor holds, however deep.
    """
    kept: dict[tuple[int, int], torch.Tensor] = {}
    for part, processor in _list_processors(module):
        own = (value for value in vars(part).values() if isinstance(value, torch.Tensor))
        kept.update({(id(tensor), 0): tensor for tensor in own})
        kept.update({(id(tensor), tensor._version): tensor for tensor in _walk(processor, _DEPTH, set())})
    return kept


def find_new(before: Mapping[tuple[int, int], torch.Tensor], module: torch.nn.Module, seen: Iterable[Any]) -> bool:
    """Whether a module keeps tensors after a call that it did not keep before, its inputs and outputs aside."""
    known = {tensor.untyped_storage().data_ptr() for tensor in seen}
    new = (tensor for key, tensor in find_kept(module).items() if key not in before)
    return any(tensor.untyped_storage().data_ptr() not in known for tensor in new)


def find_hooks(module: torch.nn.Module) -> frozenset[int]:
    """The numbers of the hooks on a module and the modules in it; torch gives each hook another number."""
    parts = unwrap(module).modules()
    return frozenset(number for part in parts for number in (*part._forward_hooks, *part._forward_pre_hooks))


def find_readers(modules: Iterable[torch.nn.Module]) -> dict[int, Any]:
    """By what a pipeline may read more of modules' calls than their output: attention processors by id, and hooks."""
    readers: dict[int, Any] = {}
    for module in modules:
        readers |= {
            id(processor): processor for _, processor in _list_processors(module)
        }  # an id lasts while it is held
        readers |= dict.fromkeys(find_hooks(module))
    return readers


def _list_processors(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Any]]:
    """The modules in a module that have an attention processor, with that."""
    for part in unwrap(module).modules():
        if (processor := vars(part).get("processor", part._modules.get("processor"))) is not None:
            yield part, processor


def unwrap(module: Any) -> Any:
    """The module that a compiled one was made of."""
    return vars(module).get("_modules", {}).get("_orig_mod", module)


def _walk(value: Any, depth: int, visited: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    if isinstance(value, torch.Tensor | type) or not depth or id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, Mapping):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set):
        inner = value
    else:
        inner = [one for name, one in getattr(value, "__dict__", {}).items() if name not in _PARTS]
    for one in list(inner):
        yield from _walk(one, depth - 1, visited)
