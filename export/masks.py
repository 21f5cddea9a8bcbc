"""Masks of text that pipelines pass only where the prompts of a call differ in length."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from zeus_trt.export.recorder import Call


@dataclass(frozen=True)
class Mask:
    """What a mask is made like.

    Args:
        dtype: Its dtype.
        axes: For each axis, a tensor among the arguments and its axis of the same size.
    """

    dtype: torch.dtype
    axes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Masks:
    """The masks that some calls of a denoiser have and others leave out, which is taken for all ones.

    Args:
        known: By name of the argument.
    """

    known: Mapping[str, Mask] = field(default_factory=dict)

    def fill(self, calls: Sequence[Call]) -> list[Call]:
        """The calls with ones where they leave a mask out."""
        return [replace(call, arguments=self.fill_arguments(call.arguments)) for call in calls]

    def fill_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call, likewise."""
        missing = {name: mask for name, mask in self.known.items() if arguments.get(name) is None}
        return dict(arguments) | {
            name: arguments[mask.axes[0][0]].new_ones(
                [arguments[other].shape[axis] for other, axis in mask.axes], dtype=mask.dtype
            )
            for name, mask in missing.items()
        }


def find_masks(calls: Iterable[Call]) -> Masks:
    """The masks that some of the calls have and others leave out."""
    calls, found = list(calls), {}
    for name in dict.fromkeys(name for call in calls for name in call.arguments if "mask" in name):
        passed = [call.arguments for call in calls if isinstance(call.arguments.get(name), torch.Tensor)]
        if not 0 < len(passed) < len(calls) or not _is_of_ones(passed[0][name]):
            continue
        axes = [_find_axis(name, place, passed[0]) for place in range(passed[0][name].ndim)]
        if None not in axes:
            found[name] = Mask(passed[0][name].dtype, tuple(axis for axis in axes if axis))
    return Masks(found)


def _is_of_ones(mask: torch.Tensor) -> bool:
    """Whether one means a token that counts; in a mask that is added to scores it is zero."""
    return bool(((mask == 0) | (mask == 1)).all() and (mask == 1).any())


def _find_axis(name: str, place: int, arguments: Mapping[str, Any]) -> tuple[str, int] | None:
    """The axis that has the size of a mask's axis: at the same place, of the tensor that the mask is named after."""
    own = arguments[name].shape
    tensors = {other: value for other, value in arguments.items() if isinstance(value, torch.Tensor) and other != name}
    for other in sorted(tensors, key=lambda other: not name.startswith(other)):
        if tensors[other].shape[: place + 1] == own[: place + 1]:
            return other, place
    return None
