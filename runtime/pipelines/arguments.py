"""The arguments of a denoiser's call as a flat list of named leaves, and back."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError

_PLAIN = (torch.Tensor, bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Arguments:
    """Flattened arguments of one call.

    Args:
        leaves: By name, in the order of the ``forward`` signature: tensors, numbers, strings and None. A leaf of a
            dict has its key for a name (``text_embeds``), one of a sequence its place (``image_rotary_emb.0``). A
            complex tensor is real here, its parts along a last axis of 2.
        paths: Where each leaf goes, by name, such as ``added_cond_kwargs.text_embeds``.
        structure: How the leaves nest.
        pairs: Names of the leaves that are complex in the call.
    """

    leaves: Mapping[str, Any]
    paths: Mapping[str, str]
    structure: Any
    pairs: frozenset[str] = frozenset()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The leaves that are tensors."""
        return {name: leaf for name, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    @property
    def constants(self) -> dict[str, Any]:
        """The leaves that are not tensors."""
        return {name: leaf for name, leaf in self.leaves.items() if not isinstance(leaf, torch.Tensor)}

    def nest(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of ``forward`` with other leaves in the same places."""
        nested = [_join_parts(leaves[name]) if name in self.pairs else leaves[name] for name in self.leaves]
        return pytree.tree_unflatten(nested, self.structure)


def is_modular(pipeline: Any) -> bool:
    """Whether it is one of diffusers' modular pipelines, whose blocks say what a call takes."""
    return any(kind.__name__ == "ModularPipeline" for kind in type(pipeline).__mro__)


def list_parameters(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    """What a call of a pipeline takes, by name; nothing that a modular pipeline takes is required, nor typed."""
    if not is_modular(pipeline):
        return inspect.signature(pipeline.__call__).parameters
    named = {one.name: one.default for one in pipeline.blocks.inputs if one.name}
    kind = inspect.Parameter.KEYWORD_ONLY
    return {name: inspect.Parameter(name, kind, default=default) for name, default in named.items()}


def bind(signature: inspect.Signature, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What was passed to a method, by the names of its signature; its first parameter, ``self``, is left out."""
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name, {}))
    arguments.pop(next(iter(signature.parameters)))
    return arguments


def flatten(arguments: Mapping[str, Any]) -> Arguments:
    """Flattens what was passed to a denoiser, by the names of its ``forward`` signature.

    Raises:
        ZeusError: A leaf is no tensor, number, string or None.
    """
    found, structure = pytree.tree_flatten_with_path(dict(arguments))
    keys = [_to_keys(path) for path, _ in found]
    names = _name(keys)
    leaves = dict(zip(names, (leaf for _, leaf in found), strict=True))
    paths = dict(zip(names, (".".join(map(str, key)) for key in keys), strict=True))
    for name, leaf in leaves.items():
        if not isinstance(leaf, _PLAIN):
            raise ZeusError(
                f"{paths[name]}: got a {type(leaf).__name__}; expected a tensor, number, string or None in the call "
                "of the denoiser. Run the pipeline without it."
            )
    pairs = frozenset(name for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor) and leaf.is_complex())
    leaves |= {name: torch.view_as_real(leaves[name].resolve_conj()) for name in pairs}
    return Arguments(leaves, paths, structure, pairs)


def _join_parts(leaf: torch.Tensor) -> torch.Tensor:
    """A complex tensor of its parts, which no half can be."""
    return torch.view_as_complex((leaf if leaf.dtype == torch.float64 else leaf.float()).contiguous())


def _to_keys(path: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", None))) for entry in path)


def _name(keys: list[tuple[Any, ...]]) -> list[str]:
    short = [key[-1] if isinstance(key[-1], str) else ".".join(map(str, key)) for key in keys]
    return [name if short.count(name) == 1 else ".".join(map(str, key)) for name, key in zip(short, keys, strict=True)]
