"""What every engine has beside its call."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_profile import Profile, check_shapes
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec
from zeus_trt.runtime.engines.named_inputs import cast_inputs, measure

_CALLS = threading.Condition()
"""Guards the ``_callers`` of every engine."""


@dataclass(frozen=True)
class EngineInfo:
    """What an engine is.

    Args:
        backend: Its kind, such as ``onnxruntime``.
        precision: That of its graph.
        device: Where it runs, and where its output is.
        profile: Shapes that it takes; None if it takes any.
        bytes: Size of its weights or files.
    """

    backend: str
    precision: Precision
    device: torch.device
    profile: Profile | None
    bytes: int


class Engine(AbstractContextManager):
    """A denoiser that holds memory until it is closed; leaving its ``with`` block closes it.

    Threads may share it, and any of them may close it: calls that have begun end first. A kind of engine gives
    ``info``, the types, axes and symbols of its inputs, ``_compute`` and ``_release``.
    """

    info: EngineInfo
    record: EngineRecord | None = None
    """Of an engine that ``zeus-trt build`` made."""
    graph: str = ""
    """The precision by which it was asked for, behind its kind; empty for the bundle's first."""
    adapter: str = ""
    """Digest of the adapter in its weights; empty without one."""
    prepares_shapes = False
    """Whether it has work to do at new sizes of its inputs: it captures a graph, or compiles."""
    is_closed = False
    _callers: tuple[int, ...] = ()
    _dtypes: Mapping[str, torch.dtype]
    _axes: Mapping[str, Sequence[int | str]] = {}
    _symbols: Sequence[SymbolSpec] = ()

    @property
    def backend(self) -> str:
        """Name of its kind, and of the precision that was asked for with it: ``onnxruntime:int8``."""
        return f"{self.info.backend}:{self.graph}" if self.graph else self.info.backend

    def __call__(self, *, out: torch.Tensor | None = None, **inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to the model output.

        Args:
            out: A tensor to be filled with it, cast to its type; by default a new one is made.
            **inputs: By name, batch first; each is cast to the type that the engine declares, in both directions.
                Numbers and arrays become tensors. A timestep of shape () or (1,), or a number, serves every row.

        Returns:
            The model output: ``out``, or a tensor of the caller's own on the engine's device.

        Raises:
            ZeusError: An input is missing, unknown, or of a shape that the engine does not take, ``out`` does not fit,
                or the engine fails or is closed.
        """
        with self._open():
            return self._call_open(out, inputs)

    def _call_open(self, out: torch.Tensor | None, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        cast = cast_inputs(self.backend, inputs, self._dtypes, self.info.device)
        if profile := self.info.profile:
            check_shapes(profile, measure(cast, profile), self._axes, self._symbols)
        output = self._compute(cast)
        if out is None:
            return output
        if not isinstance(out, torch.Tensor) or out.shape != output.shape:
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise ZeusError(f"out: got {got}; expected a tensor of {tuple(output.shape)}. Change it, or leave it out.")
        return out.copy_(output)

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        """The model output, a new tensor, for inputs that were cast and checked."""
        raise NotImplementedError

    def _release(self) -> None:
        """Drops what holds memory; no call is running."""

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Keeps the engine open within the block, which is a call of this thread."""
        caller = threading.get_ident()
        with _CALLS:
            if self.is_closed:
                raise ZeusError(f"{self.backend}: got a call of a closed engine; expected an open one. Open it again.")
            self._callers += (caller,)
        try:
            yield
        finally:
            with _CALLS:
                place = self._callers.index(caller)
                self._callers = self._callers[:place] + self._callers[place + 1 :]
                _CALLS.notify_all()

    def close(self) -> None:
        """Waits for the calls of other threads, and gives the memory back; a later call raises ZeusError."""
        caller = threading.get_ident()
        with _CALLS:
            self.is_closed = True
            _CALLS.wait_for(lambda: all(other == caller for other in self._callers))
        self._release()

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self.info
        state = ", closed" if self.is_closed else ""
        return f"{type(self).__name__}({info.backend}, {info.precision}, {info.device}, {info.bytes} bytes{state})"
