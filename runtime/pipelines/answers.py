"""What a pipeline's modules answered last, for the steps that are skipped."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

_DEPTH = 3  # of objects in objects
_WHOLE = (torch.nn.Module, type, str, bytes, int, float, type(None))  # hold no tensors, or are used as they are


class Place(NamedTuple):
    """A call inside a step: which module, and how often it was called before in this step."""

    name: str
    number: int


@dataclass(frozen=True)
class Answer:
    """The last answer at a place.

    Args:
        step: The step that the place was last met at.
        shapes: Of the tensors that the call was given.
        value: What was answered.
    """

    step: int
    shapes: tuple[torch.Size, ...]
    value: Any


class Answers:
    """The last answers of a loop, by place."""

    def __init__(self) -> None:
        self._last: dict[Place, Answer] = {}

    def keep(self, place: Place, step: int, shapes: tuple[torch.Size, ...], value: Any) -> None:
        """Keeps a copy of an answer.

        Of several tensors, those that have the shape of no input are kept by shape alone, such as the residuals of a
        ControlNet: at a skipped step nothing reads them but a denoiser that is skipped.
        """
        is_single = len(list_tensors(value)) == 1

        def change(tensor: torch.Tensor) -> torch.Tensor:
            return _copy(tensor) if is_single or tensor.shape in shapes else _blank(tensor)

        self._last[place] = Answer(step, shapes, change_tensors(value, change))

    def recall(self, place: Place, step: int, shapes: tuple[torch.Size, ...]) -> Answer | None:
        """A copy of the last answer, if there was the same kind of call at the step before."""
        last = self._last.get(place)
        if last is None or last.step != step - 1 or last.shapes != shapes:
            return None
        self._last[place] = Answer(step, shapes, last.value)
        return Answer(step, shapes, change_tensors(last.value, _copy))


def own(value: Any) -> Any:
    """An answer that no later call writes into: a denoiser may answer in the same memory each time."""
    return change_tensors(value, torch.clone)


def list_tensors(tree: Any, depth: int = _DEPTH) -> list[torch.Tensor]:
    """The tensors in arguments or in an answer, to a depth of objects that torch does not know as containers."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif depth:
            found += (tensor for part in _read_parts(leaf) for tensor in list_tensors(part.value, depth - 1))
    return found


def change_tensors(tree: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = _DEPTH) -> Any:
    """The same answer with other tensors; objects that torch does not know as containers are copied."""

    def change_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        parts = [part for part in _read_parts(leaf) if list_tensors(part.value, depth - 1)] if depth else []
        if not parts:
            return leaf
        changed = copy.copy(leaf)
        for part in parts:
            part.write(changed, part.key, change_tensors(part.value, change, depth - 1))
        return changed

    return pytree.tree_map(change_leaf, tree)


class _Part(NamedTuple):
    """An attribute or an item of an object: how it is written, its name, and what it is."""

    write: Callable[[Any, Any, Any], None]
    key: Any
    value: Any


def _read_parts(leaf: Any) -> list[_Part]:
    """What an object that torch does not know as a container holds."""
    if isinstance(leaf, _WHOLE):
        return []
    slots = [slot for cls in type(leaf).__mro__ for slot in _list_slots(cls) if hasattr(leaf, slot)]
    names = {**dict.fromkeys(slots), **getattr(leaf, "__dict__", {})}
    parts = [_Part(object.__setattr__, name, getattr(leaf, name, None)) for name in names]
    if isinstance(leaf, dict):
        parts += (_Part(dict.__setitem__, key, value) for key, value in leaf.items())
    elif isinstance(leaf, list):
        parts += (_Part(list.__setitem__, place, value) for place, value in enumerate(leaf))
    return parts


def _list_slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros like a tensor, in the memory of one number."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, float32 where it has half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
