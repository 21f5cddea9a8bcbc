"""The calls of one trajectory: the one place that guides, counts, times and checks them."""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.batch_size import RowCalls
from zeus_trt.runtime.denoiser import Denoiser, EnginePair
from zeus_trt.runtime.finite_guard import FiniteGuard
from zeus_trt.runtime.guidance import ClassifierFreeGuidance
from zeus_trt.runtime.steppers import Stepper
from zeus_trt.zeus_graph.plan import FULL

Asked = tuple[str, dict[str, torch.Tensor]]
"""A call that somebody else makes: which engine, ``F`` or ``Q``, and its inputs by name."""


class Stopwatch:
    """Time inside calls; on CUDA the device's own, which nothing waits for before it is read."""

    def __init__(self, device: torch.device):
        self._device = device
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
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

    def add(self, seconds: float) -> None:
        """Counts time that was taken elsewhere."""
        self._seconds += seconds

    def read(self) -> float:
        """Seconds so far."""
        for _, end in self._marks[-1:]:
            end.synchronize()
        return self._seconds + sum(start.elapsed_time(end) for start, end in self._marks) / 1000


class Meter:
    """Counts, times and checks the calls of one trajectory, whoever makes them.

    Args:
        on_call: Called where a call is counted.
    """

    def __init__(self, on_call: Callable[[], None] | None = None):
        self.nfe = self.calls = 0
        self.work = 0.0  # NFE, a call of some rows of a batch as their share of it
        self._on_call = on_call
        self._watches: dict[str, Stopwatch] = {}
        self._guard: FiniteGuard | None = None

    def time(self, name: str, device: torch.device, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, and adds the time inside it to that of ``name``."""
        return self._watches.setdefault(name, Stopwatch(device)).run(function, *args, **kwargs)

    def add(self, name: str, device: torch.device, seconds: float) -> None:
        """Adds time to that of ``name``."""
        self._watches.setdefault(name, Stopwatch(device)).add(seconds)

    def seconds(self, names: Iterable[str] = FULL) -> float:
        """Time inside the functions of these names; on CUDA the device's own."""
        return sum(self._watches[name].read() for name in names if name in self._watches)

    def count(self, calls: int = 1) -> None:
        """Counts calls of the engine."""
        for _ in range(calls):
            self.calls += 1
            if self._on_call:
                self._on_call()

    def check(self, step: int, output: torch.Tensor) -> None:
        """Looks at the output of a full step.

        Raises:
            ZeusError: On the CPU: it is not finite. Elsewhere ``finish`` raises it.
        """
        self._guard = self._guard or FiniteGuard(output.device)
        self._guard.check(step, output)

    def finish(self, latents: torch.Tensor) -> None:
        """Waits for the device.

        Raises:
            ZeusError: An output or the final latents are not finite.
        """
        (self._guard or FiniteGuard(latents.device)).finish(latents)


class ModelCall:
    """The denoiser of one trajectory, as its loop calls it at full steps.

    Args:
        engine: Named tensors in, one tensor out. It may overwrite latents and timestep, and may answer every call in
            the same buffer. A pair of engines for plans with ``Q``.
        stepper: The trajectory; its ``index`` decides whether a call is guided, and names the step in errors.
        conditioning: Constant inputs of the engine, each (batch, ...).
        latents_name: The engine's name for the noisy latents.
        guidance: Maps the denoiser to a guided one, such as ``ClassifierFreeGuidance``; none by default.
        interval: Evaluations that are guided; all by default.
        on_call: Called after every full step.
        some_rows: Which calls may have some rows alone. Then a step that only some rows need is a call of these, and
            what is passed to the stepper for others is zero. By default every call has all rows.
    """

    def __init__(
        self,
        engine: Denoiser | EnginePair,
        stepper: Stepper,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        latents_name: str = "sample",
        *,
        guidance: Callable[[Denoiser], Denoiser] | None = None,
        interval: range | None = None,
        on_call: Callable[[], None] | None = None,
        some_rows: RowCalls | None = None,
    ):
        self._engine, self._stepper, self._on_call = engine, stepper, on_call
        self._some_rows = some_rows
        self._conditioning, self._latents_name = dict(conditioning or {}), latents_name
        self._guidance = guidance
        self._guided = guidance(self._call_engine) if guidance else None
        self._interval = interval
        self.meter = Meter()

    @torch.no_grad()
    def __call__(self, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Maps latents (batch, ...) and timestep (batch,) of the stepper's ``call`` to the output after guidance.

        Raises:
            ZeusError: The output is not a floating-point tensor, has another shape than the latents, or is not finite.
        """
        rows = self._choose_rows(len(latents))
        inputs = self._gather(latents, timestep, rows)
        guided = self._guided if self._is_inside else None
        if guided and rows is not None:
            guided = self._select_guidance(rows)(self._call_engine)
        return self._take((guided or self._call_engine)(**inputs), latents, rows)

    def ask(self, latents: torch.Tensor, timestep: torch.Tensor) -> Generator[Asked, torch.Tensor, torch.Tensor]:
        """As a call, but whoever holds the generator calls the engine and sends its output.

        The inputs are the engine's to overwrite. Guidance must be classifier-free, if there is any.
        """
        letter, device = self._stepper.letter, latents.device
        rows = self._choose_rows(len(latents))
        inputs = self._gather(latents, timestep, rows)
        guidance = self._select_guidance(rows) if self._guidance and self._is_inside else None
        outputs = []
        for branch in guidance.expand(inputs) if guidance else (inputs,):
            if guidance and guidance.sequential:  # the other branch reads them too
                branch |= {name: branch[name].clone() for name in (self._latents_name, "timestep")}
            self.meter.count()
            began = time.perf_counter()
            outputs.append((yield letter, branch))
            self.meter.add(letter, device, time.perf_counter() - began)
        return self._take(guidance.combine(outputs) if guidance else outputs[0], latents, rows)

    @property
    def _is_inside(self) -> bool:
        return self._interval is None or self._stepper.index in self._interval

    def _choose_rows(self, count: int) -> list[int] | None:
        """The rows that the stepper reads the output of, where a call may have these alone; else None."""
        rows = getattr(self._stepper, "rows", None) if self._some_rows else None
        guidance = self._guidance if self._is_inside else None
        is_known = guidance is None or isinstance(guidance, ClassifierFreeGuidance)
        if rows is None or len(rows) == count or not is_known:
            return None
        branches = 2 if isinstance(guidance, ClassifierFreeGuidance) and not guidance.sequential else 1
        return rows if self._some_rows and self._some_rows.takes(branches * len(rows)) else None

    def _gather(self, latents: torch.Tensor, timestep: torch.Tensor, rows: list[int] | None) -> dict[str, torch.Tensor]:
        inputs = {self._latents_name: latents, "timestep": timestep, **self._conditioning}
        if rows is None or self._some_rows is None:
            return inputs
        return {name: value[rows] if name in self._some_rows.by_row else value for name, value in inputs.items()}

    def _select_guidance(self, rows: list[int] | None) -> ClassifierFreeGuidance:
        assert isinstance(self._guidance, ClassifierFreeGuidance)
        if rows is None or self._some_rows is None:
            return self._guidance
        return self._guidance.select(rows, self._some_rows.by_row)

    def _take(self, output: torch.Tensor, latents: torch.Tensor, rows: list[int] | None) -> torch.Tensor:
        _check_output(output, latents if rows is None else latents[: len(rows)])
        self.meter.check(self._stepper.index, output)
        self.meter.nfe += 1
        self.meter.work += 1.0 if rows is None else len(rows) / len(latents)
        if rows is not None:
            some, output = output, output.new_zeros(latents.shape)
            output[rows] = some
        if self._on_call:
            self._on_call()
        return output

    def finish(self) -> torch.Tensor:
        """Waits for the device, and returns the stepper's final latents.

        Raises:
            ZeusError: An output or the final latents are not finite.
        """
        self.meter.finish(self._stepper.latents)
        return self._stepper.latents

    def _call_engine(self, **inputs: torch.Tensor) -> torch.Tensor:
        self.meter.count()
        if self._guided:  # guidance may read latents and timestep again after the engine has overwritten them
            inputs |= {name: inputs[name].clone() for name in (self._latents_name, "timestep") if name in inputs}
        constant = [inputs[name] for name in self._conditioning if name in inputs]
        before = _read_versions(constant)
        letter, device = self._stepper.letter, self._stepper.latents.device
        output = self.meter.time(letter, device, self._choose_engine(letter), **inputs)
        if _read_versions(constant) != before:
            raise ZeusError(
                "denoiser: got a call that changes its conditioning; expected constant inputs that stay as they are. "
                "Change a copy of them."
            )
        if not isinstance(output, torch.Tensor):
            raise ZeusError(f"denoiser: got {type(output).__name__} from it; expected a tensor. Return that alone.")
        return output

    def _choose_engine(self, letter: str) -> Denoiser:
        if isinstance(self._engine, EnginePair):
            return self._engine.answer(letter)
        if letter == "Q":
            raise ZeusError(
                f"plan: got Q at step {self._stepper.index} for one engine; expected EnginePair(full, quantized). Give "
                "both engines, or write F."
            )
        return self._engine


def _read_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Torch counts writes to a tensor, unless it was made in inference mode."""
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _check_output(output: torch.Tensor, latents: torch.Tensor) -> None:
    if not isinstance(output, torch.Tensor):
        raise ZeusError(f"denoiser: got {type(output).__name__} from its guidance; expected a tensor. Return that.")
    if not output.is_floating_point() or output.device != latents.device:
        raise ZeusError(
            f"denoiser: got an output of {output.dtype} on {output.device}; expected a floating-point tensor on "
            f"{latents.device}. Fix the engine, or the guidance around it."
        )
    if output.shape != latents.shape:
        raise ZeusError(
            f"denoiser: got an output of {tuple(output.shape)}; expected {tuple(latents.shape)}, as its latents. "
            "Fix the engine, or the guidance around it."
        )
