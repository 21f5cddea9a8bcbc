"""The calls of one trajectory."""

import time
from collections.abc import Callable
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.finite_guard import FiniteGuard


class Stopwatch:
    """Time inside calls; on CUDA the device's own, which nothing waits for before it is read."""

    def __init__(self, device: torch.device):
        self._device = device
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(torch.cuda.current_stream(self._device))
            result = function(*args, **kwargs)
            end.record(torch.cuda.current_stream(self._device))
            self._marks.append((start, end))
            return result
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        self._seconds += time.perf_counter() - begin
        return result

    def read(self) -> float:
        """Seconds so far."""
        for _, end in self._marks[-1:]:
            end.synchronize()
        return self._seconds + sum(start.elapsed_time(end) for start, end in self._marks) / 1000


class Meter:
    """Counts the calls of a denoiser and the time inside it.

    Args:
        denoiser: The engine.
        device: Where it runs.
    """

    def __init__(self, denoiser: Denoiser, device: torch.device):
        self._denoiser = denoiser
        self._watch = Stopwatch(device)
        self.calls = 0

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output = self._watch.run(self._denoiser, **inputs)
        if not isinstance(output, torch.Tensor):
            raise ZeusError(f"denoiser: got {type(output).__name__} from it; expected a tensor. Return that alone.")
        return output

    @property
    def seconds(self) -> float:
        """Time inside the denoiser."""
        return self._watch.read()


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
