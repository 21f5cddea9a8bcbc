"""The calls of one trajectory."""

import time
from collections.abc import Callable

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.finite_guard import FiniteGuard


class Meter:
    """Counts the calls of a denoiser and the time inside it.

    Args:
        denoiser: The engine.
        device: On CUDA the time is the device's own, and nothing waits for it before ``seconds`` is read.
    """

    def __init__(self, denoiser: Denoiser, device: torch.device):
        self._denoiser = denoiser
        self._on_cuda = device.type == "cuda"
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0
        self.calls = 0

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output = self._time(**inputs)
        if not isinstance(output, torch.Tensor):
            raise ZeusError(f"denoiser: got {type(output).__name__} from it; expected a tensor. Return that alone.")
        return output

    def _time(self, **inputs: torch.Tensor) -> torch.Tensor:
        if self._on_cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            output = self._denoiser(**inputs)
            end.record()
            self._marks.append((start, end))
            return output
        begin = time.perf_counter()
        output = self._denoiser(**inputs)
        self._seconds += time.perf_counter() - begin
        return output

    @property
    def seconds(self) -> float:
        """Time inside the denoiser; on CUDA the trajectory must have ended."""
        return self._seconds + sum(start.elapsed_time(end) for start, end in self._marks) / 1000


class FullSteps:
    """The denoiser of one trajectory: guided or not by the step, its outputs checked.

    Args:
        guided: The denoiser inside the interval of guidance.
        plain: The denoiser outside of it.
        interval: Evaluations that are guided.
        shape: What every output must have.
        guard: What checks the outputs.
        on_call: Called after every full step.
    """

    def __init__(
        self,
        guided: Denoiser,
        plain: Denoiser,
        interval: range,
        shape: torch.Size,
        guard: FiniteGuard,
        on_call: Callable[[], None] | None = None,
    ):
        self._guided, self._plain, self._interval, self._shape = guided, plain, interval, shape
        self.guard = guard
        self._on_call = on_call
        self._step = 0
        self.count = 0

    def begin(self, step: int) -> None:
        """Tells which evaluation the next call is of."""
        self._step = step

    @torch.no_grad()
    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        output = (self._guided if self._step in self._interval else self._plain)(**inputs)
        if output.shape != self._shape:
            raise ZeusError(
                f"denoiser: got an output of {tuple(output.shape)}; expected {tuple(self._shape)}, as its latents. "
                "Mend the engine, or the guidance around it."
            )
        self.guard.check(self._step, output)
        self.count += 1
        if self._on_call:
            self._on_call()
        return output
