"""Functions of Python and torch that make numbers of sizes, while a model is traced with its sizes left open."""

import builtins
import functools
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._sympy.functions import IntTrueDiv

_LOCK = threading.RLock()
_THREAD = threading.local()  # is_tracing: whether this thread is inside a block


@contextmanager
def keep_sizes_open(model: torch.nn.Module) -> Iterator[None]:
    """Within the block, ``int``, ``float``, ``len``, ``max``, ``min`` and ``set`` in the model's files keep sizes open.

    Python makes a number of a size otherwise, or branches on it, and the traced program is that of the number. The
    files have these names for the time of the block; a name that a file defines itself is left alone, and so is torch.
    Functions with an ``lru_cache`` run without it, so that nothing of a trace stays in a cache. All of this acts on
    the sizes of a trace in this thread: other threads may run the same files. One block is open at a time; another
    thread waits for it. Torch makes tensors of sizes that are open, and NumPy takes roots of their quotients.

    Args:
        model: What is traced.
    """
    own = {
        "int": _Int, "float": _Float, "len": _measure, "set": _Set, "max": _choose("max", torch.sym_max),
        "min": _choose("min", torch.sym_min),
    }  # fmt: skip
    kinds = {kind for part in model.modules() for kind in type(part).__mro__ if _is_own(kind)}
    files = [sys.modules[name] for name in {kind.__module__ for kind in kinds} & sys.modules.keys()]
    with _LOCK, ExitStack() as stack:
        stack.callback(setattr, _THREAD, "is_tracing", _is_tracing())
        for file in files:
            for name in own.keys() - vars(file).keys():
                stack.callback(delattr, file, name)
                setattr(file, name, own[name])
        for owner in (*files, *kinds):
            for name, value in [*vars(owner).items()]:
                if isinstance(value, functools._lru_cache_wrapper):
                    stack.callback(setattr, owner, name, value)
                    setattr(owner, name, _skip_cache(value))
        if not hasattr(torch.SymFloat, "sqrt"):
            stack.callback(delattr, torch.SymFloat, "sqrt")
            torch.SymFloat.sqrt = _take_root  # type: ignore[attr-defined]
        _THREAD.is_tracing = True
        stack.enter_context(_Functions())
        yield


def _is_own(kind: type) -> bool:
    """Whether a class is a module's, and none of torch."""
    return issubclass(kind, torch.nn.Module) and not kind.__module__.startswith("torch.")


def _is_tracing() -> bool:
    return getattr(_THREAD, "is_tracing", False)


def _is_open(value: object) -> bool:
    """Whether it is a size of a trace in this thread."""
    return isinstance(value, torch.SymInt) and _is_tracing()


def _skip_cache(cached: Any) -> Callable[..., Any]:
    """A function with a cache as one that does without it while its thread traces."""

    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (cached.__wrapped__ if _is_tracing() else cached)(*args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


def _take_root(quotient: torch.SymFloat) -> Any:
    """What ``numpy.sqrt`` calls on an object: a number where the sizes cancel, as in a ratio of elements."""
    value = quotient.node.expr.replace(IntTrueDiv, operator.truediv).cancel()
    return math.sqrt(value) if value.is_number else torch.sym_sqrt(quotient)


class _OpenType(type):
    """The type of stand-ins for the built-in types that are their bases."""

    keep: Callable[[Any], Any]  # what stands for a value that is open, or None

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1]) or (cls is _Int and _is_open(value))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kept = cls.keep(args[0]) if args else None
        return cls.__mro__[1](*args, **kwargs) if kept is None else kept


class _Int(int, metaclass=_OpenType):
    """``int``, but for a size that is open: that stays one."""

    @staticmethod
    def keep(value: Any) -> Any:
        if isinstance(value, torch.SymFloat) and _is_tracing():
            return torch.sym_int(value)
        return value if _is_open(value) else None


class _Float(float, metaclass=_OpenType):
    """``float``, which keeps a size open too."""

    @staticmethod
    def keep(value: Any) -> Any:
        return torch.sym_float(value) if _is_open(value) else None


class _Set(set, metaclass=_OpenType):
    """``set``, which is a list where there are sizes that are open: these have no hash."""

    @staticmethod
    def keep(values: Any) -> Any:
        values = [*values]
        if not any(map(_is_open, values)):
            return set(values)
        return functools.reduce(lambda kept, value: kept if value in kept else [*kept, value], values, [])


def _measure(value: Any) -> Any:
    """``len``, which is a size for a tensor."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else builtins.len(value)


def _choose(name: str, of_sizes: Callable[..., Any]) -> Callable[..., Any]:
    """``max`` or ``min``, without a branch for sizes."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        values = args if len(args) > 1 else args[0]
        if not kwargs and isinstance(values, list | tuple) and any(map(_is_open, values)):
            return functools.reduce(of_sizes, values)
        return getattr(builtins, name)(*args, **kwargs)  # torch has its own while it traces

    return choose


class _Functions(TorchFunctionMode):
    """Functions of torch that make numbers of sizes, or views that do not export."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch._C._nn.pad_sequence:
            func = _pad
        elif func in (torch.tensor, torch.as_tensor) and _is_open(args[0]):
            func = _make_tensor
        elif func is torch.linspace and len(args) > 2 and _is_open(args[2]):
            func = _space
        elif func is torch.Tensor.fill_diagonal_ and args[0].ndim == 2 and len(args) == 2 and not kwargs:
            func = _fill_diagonal
        return func(*args, **(kwargs or {}))


def _make_tensor(size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> torch.Tensor:
    return torch.full((), size, dtype=dtype or torch.int64, device=device)


def _space(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """``linspace``; two steps or more, as torch takes open sizes for."""
    options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    return torch.arange(steps, **options) * ((end - start) / (steps - 1)) + start


def _fill_diagonal(matrix: torch.Tensor, value: float) -> torch.Tensor:
    """``fill_diagonal_``, in which torch makes a view that is not functional."""
    rows, columns = (torch.arange(size, device=matrix.device) for size in matrix.shape)
    return matrix.masked_fill_(rows[:, None] == columns, value)


def _pad(sequences: Sequence[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, *side: str) -> Any:
    longest = functools.reduce(torch.sym_max, (sequence.shape[0] for sequence in sequences))
    padded = []
    for sequence in sequences:
        if len(sequences) > 1:
            rest = sequence.new_full((longest - sequence.shape[0], *sequence.shape[1:]), padding_value)
            sequence = torch.cat([rest, sequence] if side == ("left",) else [sequence, rest])
        padded.append(sequence)
    return torch.stack(padded, 0 if batch_first else 1)
