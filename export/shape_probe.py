"""Answering in the place of a denoiser."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.export.shallow_copy import copy_to_meta, shallow_copy


class ShapeProbe:
    """Answers like the denoiser, with noise in the shape and dtype of what it would return.

    Noise, not zeros: solvers keep zeros where they are, and latents would look constant. The denoiser itself
    is not run, unless its shapes depend on its data.

    Args:
        denoiser: The module.
        seed: Of the noise.
    """

    def __init__(self, denoiser: torch.nn.Module, seed: int = 0):
        self._denoiser = denoiser
        self._meta = copy_to_meta(denoiser)
        self._answers: dict[str, Any] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Noise for keyword arguments of ``forward``.

        Raises:
            Exception: What the denoiser raises if it refuses them.
        """
        tensors = [leaf for leaf in pytree.tree_leaves(dict(arguments)) if isinstance(leaf, torch.Tensor)]
        key = repr(pytree.tree_map_only(torch.Tensor, lambda tensor: (tensor.shape, tensor.dtype), dict(arguments)))
        if key not in self._answers:
            self._answers[key] = self._find_answer(dict(arguments))
        return pytree.tree_map_only(
            torch.Tensor, lambda like: self._make_noise(like).to(tensors[0].device), self._answers[key]
        )

    @torch.no_grad()
    def _find_answer(self, arguments: dict[str, Any]) -> Any:
        on_meta = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)
        try:
            with torch.device("meta"):
                return _forward(self._meta, on_meta)
        except Exception:  # shapes that depend on data, or arguments that the model refuses: running it shows which
            return _forward(shallow_copy(self._denoiser), arguments)

    def _make_noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=self._generator).to(like.dtype)


def _forward(module: Any, arguments: dict[str, Any]) -> Any:
    return type(module).forward(module, **arguments)  # not what accelerate's hooks put in its place
