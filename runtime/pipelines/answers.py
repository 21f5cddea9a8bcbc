"""What a pipeline's modules answered last, for the steps that are skipped."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


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

        Of several tensors, those of a ControlNet, shapes alone are kept: at a skipped step nothing reads them but a
        denoiser that is skipped.
        """
        change = _copy if len(list_tensors(value)) == 1 else _blank
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
    return change_tensors(value, lambda tensor: tensor if tensor.requires_grad else tensor.clone())


def list_tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in arguments or in an answer."""
    leaves = pytree.tree_leaves(tree)
    inner = [value for leaf in leaves if _is_opaque(leaf) for value in vars(leaf).values()]
    return [leaf for leaf in (*leaves, *inner) if isinstance(leaf, torch.Tensor)]


def change_tensors(tree: Any, change: Any) -> Any:
    """The same answer with other tensors; objects that torch does not know as containers are copied."""

    def change_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not _is_opaque(leaf) or not any(isinstance(value, torch.Tensor) for value in vars(leaf).values()):
            return leaf
        changed = copy.copy(leaf)
        for name, value in vars(leaf).items():
            if isinstance(value, torch.Tensor):
                object.__setattr__(changed, name, change(value))
        return changed

    return pytree.tree_map(change_leaf, tree)


def _is_opaque(leaf: Any) -> bool:
    return hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor | torch.nn.Module | type)


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros like a tensor, in the memory of one number."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
