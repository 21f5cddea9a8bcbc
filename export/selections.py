"""Rows that masks select, while a model is traced: how many they are is known where they are joined."""

import operator
from collections import Counter
from collections.abc import Sequence
from functools import partialmethod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_NOT = (torch.Tensor.__invert__, torch.bitwise_not, torch.logical_not, torch.Tensor.logical_not)
_OPERATORS = [
    name
    for own in vars(operator)
    for name in (own, own.replace("__", "__r", 1))
    if own.startswith("__") and callable(getattr(torch.Tensor, name, None))
]
_ROW_BY_ROW = (torch.zeros_like, torch.ones_like)


class _Selected:
    """``rows[mask]``, not selected yet; whatever else reads it selects it."""

    def __init__(self, rows: torch.Tensor, mask: torch.Tensor):
        self.rows, self.mask = rows, mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(_select(self), name)

    def _act(self, name: str, *args: Any) -> Any:
        return getattr(_select(self), name)(*args)


for _name in _OPERATORS:  # Python looks them up in the class
    setattr(_Selected, _name, partialmethod(_Selected._act, _name))


class Selections(TorchFunctionMode):
    """Within the block, ``torch.cat`` joins what masks and their opposites select.

    ``cat([x[mask], y[~mask]])`` has as many rows as the mask, which torch does not know. What is selected stays open
    until it is joined; where anything else reads it, it is selected as ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opposites: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ and _is_mask(args[1]):
            return _Selected(_select(args[0]), args[1])
        if func in _ROW_BY_ROW and isinstance(args[0], _Selected):
            return _Selected(func(args[0].rows, **kwargs), args[0].mask)
        if func is torch.cat and (joined := self._join(*args, **kwargs)) is not None:
            return joined
        args, kwargs = pytree.tree_map_only(_Selected, _select, (args, kwargs))
        result = func(*args, **kwargs)
        if func in _NOT and _is_mask(result):
            self._opposites.append((result, args[0]))
        return result

    def _join(self, parts: Any, dim: int = 0) -> torch.Tensor | None:
        """The rows in order; None where their number does not follow from the masks."""
        if dim or not any(isinstance(part, _Selected) for part in parts):
            return None
        every = [part if isinstance(part, _Selected) else _Selected(part, _make_mask(part)) for part in parts]
        balance, total = Counter[int](), 0
        for given, part in zip(parts, every, strict=True):
            opposed = next((mask for opposite, mask in self._opposites if opposite is part.mask), None)
            if opposed is not None:
                balance[id(opposed)] -= 1
                continue
            balance[id(part.mask)] += part is given
            total = total + part.mask.shape[0]
        if any(balance.values()):
            return None
        rows, mask = torch.cat([part.rows for part in every]), torch.cat([part.mask for part in every])
        return rows[_find_places(mask, total)]


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.ndim == 1


def _select(value: Any) -> Any:
    return value.rows[value.mask,] if isinstance(value, _Selected) else value


def _make_mask(rows: torch.Tensor) -> torch.Tensor:
    return torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)


def _find_places(mask: torch.Tensor, total: Any) -> torch.Tensor:
    """The places where a mask is true, of which there are ``total``."""
    count = mask.shape[0]
    rank = torch.where(mask, torch.cumsum(mask, 0) - 1, count)  # what is false goes to a place behind all others
    places = torch.arange(count, device=mask.device)
    # TensorRT-RTX scatters into as many places as it has values, or more
    return torch.zeros(count + 1, dtype=torch.int64, device=mask.device).scatter(0, rank, places)[:total]
