"""Functions of Python and torch that make numbers of sizes, while a model is traced with its sizes left open."""

import builtins
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def keep_sizes_open(model: torch.nn.Module) -> Iterator[None]:
    """Within the block, ``int``, ``len``, ``max`` and ``min`` in the model's files return sizes that stay open.

    Python makes a number of a size otherwise, or branches on it, and the traced program is that of the number. For
    anything but the sizes of a trace they return what they always do, so that the same files may run elsewhere at the
    same time. A size that is open may also be in a set, and torch makes tensors of it.

    Args:
        model: What is traced.
    """
    files = {sys.modules[type(part).__module__] for part in model.modules()}
    own = {"int": _Int, "len": _measure, "max": _choose("max", torch.sym_max), "min": _choose("min", torch.sym_min)}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.SymInt, "__hash__", _hash))  # equality decides
        for file in files:
            if not file.__name__.startswith("torch."):
                stack.enter_context(mock.patch.dict(vars(file), own))
        stack.enter_context(_Functions())
        yield


def _hash(size: torch.SymInt) -> int:
    return 0


class _IntType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int | torch.SymInt)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and isinstance(args[0], torch.SymInt) else int(*args, **kwargs)


class _Int(int, metaclass=_IntType):
    """``int``, but for a size that is open: that stays one."""


def _measure(value: Any) -> Any:
    """``len``, which is a size for a tensor."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else builtins.len(value)


def _choose(name: str, of_sizes: Callable[..., Any]) -> Callable[..., Any]:
    """``max`` or ``min``, without a branch for sizes."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        values = args if len(args) > 1 else args[0]
        if not kwargs and isinstance(values, list | tuple) and any(isinstance(each, torch.SymInt) for each in values):
            return functools.reduce(of_sizes, values)
        return getattr(builtins, name)(*args, **kwargs)  # torch has its own while it traces

    return choose


class _Functions(TorchFunctionMode):
    """Functions of torch that make numbers of sizes."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch._C._nn.pad_sequence:
            func = _pad
        elif func in (torch.tensor, torch.as_tensor) and isinstance(args[0], torch.SymInt):
            func = _make_tensor
        elif func is torch.linspace and len(args) > 2 and isinstance(args[2], torch.SymInt):
            func = _space
        return func(*args, **(kwargs or {}))


def _make_tensor(size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> torch.Tensor:
    return torch.full((), size, dtype=dtype or torch.int64, device=device)


def _space(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """``linspace``; two steps or more, as torch takes open sizes for."""
    options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    return torch.arange(steps, **options) * ((end - start) / (steps - 1)) + start


def _pad(sequences: Sequence[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, *side: str) -> Any:
    longest = functools.reduce(torch.sym_max, (sequence.shape[0] for sequence in sequences))
    padded = []
    for sequence in sequences:
        if len(sequences) > 1:
            rest = sequence.new_full((longest - sequence.shape[0], *sequence.shape[1:]), padding_value)
            sequence = torch.cat([rest, sequence] if side == ("left",) else [sequence, rest])
        padded.append(sequence)
    return torch.stack(padded, 0 if batch_first else 1)
