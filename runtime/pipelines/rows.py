"""How a call of a denoiser passes its rows: along the first axis of its tensors, or as lists with an entry per row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.pipelines.arguments import Arguments, flatten


@dataclass(frozen=True)
class Rows:
    """What a graph takes of the rows of a call.

    Args:
        lists: Names of the arguments that are lists with an entry per row: tensors, lists of tensors, or plain values.
        tensors: Names of the leaves whose first axis counts the rows; they are used where the graph takes one row.
        is_one: Whether the graph takes one row only.
    """

    lists: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    is_one: bool = False

    @classmethod
    def of(cls, manifest: Manifest, arguments: Mapping[str, Any]) -> "Rows":
        """How a call passes the rows of a bundle's graph."""
        inputs = {spec.name: spec for spec in manifest.inputs}
        known = {*inputs, *manifest.constants}
        lists = (name for name, value in arguments.items() if isinstance(value, list | tuple) and value)
        found = frozenset(name for name in lists if name in inputs or _has_one_entry(name, arguments[name], known))
        is_one = manifest.latents.axes[:1] == (1,)
        count = cls(found).count(manifest.latents.name, arguments)
        leaves = flatten({name: value for name, value in arguments.items() if name not in found}).tensors
        tensors = frozenset(
            name
            for name, leaf in leaves.items()
            if name in inputs and inputs[name].axes[:1] == (1,) and leaf.shape[:1] == (count,)
        )
        return cls(found, tensors, is_one)

    def flatten(self, arguments: Mapping[str, Any], row: int = 0) -> Arguments:
        """The arguments as the graph takes them: a list of tensors is one tensor with a row, other lists one entry.

        A tensor in a list in such an entry gets a first axis of one row.

        Args:
            arguments: Of a call, by name.
            row: The row that is taken, where the graph takes one only.

        Raises:
            ZeusError: A list whose entries differ from row to row, where the graph takes all rows at once.
        """
        taken = dict(arguments)
        for name in self.lists & taken.keys():
            entry = taken[name][row]
            if isinstance(entry, torch.Tensor):
                taken[name] = entry[None]
                continue
            if has_tensor(entry):
                taken[name] = [pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[None], entry)]
                continue
            if not self.is_one and any(other != entry for other in taken[name]):
                raise ZeusError(
                    f"{name}: got entries that differ from row to row; expected equal ones, since the denoiser's graph "
                    "takes one for all rows. Run images of one kind at a time."
                )
            taken[name] = [entry]
        found = flatten(taken)
        if not self.is_one:
            return found
        leaves = {name: leaf[row : row + 1] if name in self.tensors else leaf for name, leaf in found.leaves.items()}
        return replace(found, leaves=leaves)

    def restore(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of ``forward`` for what ``flatten`` made, with lists of tensors again."""
        return {name: _restore(value) if name in self.lists else value for name, value in arguments.items()}

    def count(self, name: str, arguments: Mapping[str, Any]) -> int:
        """The rows of a call whose latents are the leaf ``name``, which may be in a list with an entry per row."""
        return count_rows(arguments.get(self.find_list(name) or name))

    def find_list(self, name: str) -> str | None:
        """The list with an entry per row that a leaf is of; None if it is of none."""
        return next((each for each in self.lists if name == each or name.startswith(f"{each}.")), None)


def has_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or holds one."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def count_rows(value: Any) -> int:
    """The rows of a tensor or of a list; 1 of anything else."""
    return len(value) if isinstance(value, list | tuple) or (isinstance(value, torch.Tensor) and value.ndim) else 1


def read_prediction(answer: Any) -> torch.Tensor:
    """A denoiser's prediction: its answer, or the first part of that, which may be a list with a tensor per row."""
    output = answer if isinstance(answer, torch.Tensor) else answer[0]
    return torch.stack([*output]) if isinstance(output, list | tuple) else output


def _restore(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [*value.unbind(0)]
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.squeeze(0), value)


def _has_one_entry(name: str, entries: Sequence[Any], known: set[str]) -> bool:
    """Whether a graph knows a list of plain values by its first entry alone."""
    places = {path.split(".")[1] for path in known if path.startswith(f"{name}.")}
    return places == {"0"} and not isinstance(entries[0], torch.Tensor)
