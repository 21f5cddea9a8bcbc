"""What every engine has beside its call."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.engine_profile import Profile

_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class EngineInfo:
    """What an engine is.

    Args:
        backend: Its kind, such as ``onnxruntime``.
        precision: ``fp32``, ``fp16`` or ``bf16``; that of its latents.
        device: Where it runs, and where its output lies.
        profile: Shapes that it takes; None if it takes any.
        bytes: Size of its weights or files.
    """

    backend: str
    precision: str
    device: torch.device
    profile: Profile | None
    bytes: int


class Engine(AbstractContextManager):
    """A denoiser that holds memory until it is closed; leaving its ``with`` block closes it.

    Called with its inputs by name, batch first, it casts each to the type that it declares, in both directions. A
    timestep of shape (), (1,) or (batch,) serves. The output is a new tensor of the caller's own. Threads may share it.
    """

    info: EngineInfo
    is_closed = False

    @property
    def backend(self) -> str:
        """Name of its kind."""
        return self.info.backend

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to the model output."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives its memory back; a later call raises ZeusError."""
        self.is_closed = True

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self.info
        state = ", closed" if self.is_closed else ""
        return f"{type(self).__name__}({info.backend}, {info.precision}, {info.device}, {info.bytes} bytes{state})"

    def _check_open(self) -> None:
        if self.is_closed:
            raise ZeusError(f"{self.backend}: got a call of a closed engine; expected an open one. Open it again.")


def name_precision(dtype: torch.dtype) -> str:
    """``fp32``, ``fp16`` or ``bf16``; the name of any other type."""
    return _PRECISIONS.get(dtype, str(dtype).removeprefix("torch."))
