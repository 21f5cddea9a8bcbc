"""Which calls of an engine may be one."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.engines.named_inputs import spread_rows
from zeus_trt.serving.waiting_call import Caller, WaitingCall

_REMEMBERED = 256

_Kind = tuple[str, torch.Size, torch.dtype, torch.device]  # of a tensor


@dataclass(frozen=True, eq=False)
class _Form:
    """Shapes and types that calls have in common; equal ones are the same object.

    Args:
        by_row: The names of inputs with a row per row of the latents.
        constant: All others.
    """

    by_row: tuple[str, ...]
    constant: tuple[str, ...]


class CallForms:
    """Makes waiting calls. Calls with as many rows, shapes and types as an earlier one are not looked at again.

    Args:
        by_row: Names of the inputs with a row per image, the latents first and the timestep second.
    """

    def __init__(self, by_row: tuple[str, ...]):
        self._by_row = by_row
        self._find = lru_cache(_REMEMBERED)(self._check)
        self._forms: WeakValueDictionary[tuple[tuple[object, ...], ...], _Form] = WeakValueDictionary()
        self._lock = threading.Lock()

    def make(
        self,
        caller: Caller,
        letter: str,
        inputs: Mapping[str, Any],
        now: float,
        due: float,
        on_done: Callable[[WaitingCall], None] | None = None,
    ) -> WaitingCall:
        """The call of an engine, ``F`` or ``Q``; the rest as in ``WaitingCall``.

        Raises:
            ZeusError: An input is missing, or inputs disagree in their rows.
        """
        latents, timestep = self._by_row[:2]
        tensors = {
            name: value if isinstance(value, torch.Tensor) else torch.as_tensor(value) for name, value in inputs.items()
        }
        if missing := [name for name in (latents, timestep) if name not in tensors]:
            raise ZeusError(f"engine: got no {missing[0]}; expected it. Pass each input by name.")
        rows, times = tensors[latents].shape[:1], tensors[timestep]
        if times.shape != rows or times.dtype != torch.float32:
            tensors[timestep] = spread_rows(times.float(), *(rows or (0,)))
        form = self._find(*((name, value.shape, value.dtype, value.device) for name, value in sorted(tensors.items())))
        key = (letter, form, *(_read_bytes(tensors[name]) for name in form.constant))
        return WaitingCall(caller, key, tensors, form.by_row, now, due, on_done)

    def _check(self, *kinds: _Kind) -> _Form:
        shapes = {name: shape for name, shape, *_ in kinds}
        by_row = tuple(name for name in self._by_row if name in shapes)
        rows = shapes[by_row[0]][:1] or (0,)
        if wrong := [name for name in by_row if shapes[name][:1] != rows or rows == (0,)]:
            raise ZeusError(
                f"{wrong[0]}: got the shape {tuple(shapes[wrong[0]])}; expected {max(*rows, 1)} rows, one per row of "
                "the latents. Change it."
            )
        alike = tuple((name, shape[name in by_row :], *others) for name, shape, *others in kinds)
        with self._lock:
            form = self._forms.get(alike) or _Form(by_row, tuple(name for name in shapes if name not in by_row))
            return self._forms.setdefault(alike, form)


def _read_bytes(value: torch.Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
