"""The engine calls of a run, kept in files: the inputs that a quantizer reads, and the outputs to compare with."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.runtime import Step
from zeus_trt.runtime.denoiser import Denoiser


@dataclass(frozen=True)
class Call:
    """One call of an engine.

    Args:
        step: The evaluation that it belongs to.
        timestep: The scheduler's timestep there.
        branch: ``both`` halves of guidance in one call, ``conditional`` or ``unconditional`` of two calls, or ``only``.
        inputs: Digest of each input, by its name.
        output: Digest of the output.
    """

    step: int
    timestep: float
    branch: str
    inputs: Mapping[str, str]
    output: str


class Recording:
    """Calls in the order in which they were made. Each different tensor is one file, and one call is read at a time.

    Args:
        folder: Where the files go.
        steps: The steps whose calls are kept.
    """

    def __init__(self, folder: Path, steps: Collection[int]):
        self._folder, self.steps = folder, frozenset(steps)
        self.calls: list[Call] = []

    def keep(self, tensor: torch.Tensor) -> str:
        """Writes a tensor, unless it is there; returns its digest."""
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()
        file = self._folder / f"{digest}.npy"
        if not file.exists():
            np.save(file, array)
        return digest

    def read_inputs(self, call: Call) -> dict[str, np.ndarray]:
        """The inputs of a call, by name."""
        return {name: self._read(digest) for name, digest in call.inputs.items()}

    def read(self) -> Iterator[tuple[Call, dict[str, np.ndarray], np.ndarray]]:
        """Every call with its inputs and its output."""
        for call in self.calls:
            yield call, self.read_inputs(call), self._read(call.output)

    def _read(self, digest: str) -> np.ndarray:
        return np.load(self._folder / f"{digest}.npy")


class Recorder:
    """An engine that keeps its calls, while it has a place for them. ``tag`` says which step they belonged to.

    Args:
        engine: The engine that is called.
    """

    def __init__(self, engine: Denoiser):
        self._engine = engine
        self._recording: Recording | None = None
        self._new: list[tuple[int, dict[str, str], str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def into(self, recording: Recording) -> Iterator[None]:
        """Keeps the calls of the block in ``recording``."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording, self._new = None, []

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        output = self._engine(**inputs)
        if recording := self._recording:
            kept = {name: recording.keep(torch.as_tensor(value)) for name, value in inputs.items()}
            self._new.append((len(output), kept, recording.keep(output)))
        return output

    def tag(self, step: Step) -> None:
        """Adds the calls that were made for a step, which has just been done."""
        calls, rows = self._new, len(step.latents)
        names = ("conditional", "unconditional")
        for place, (count, inputs, output) in enumerate(calls):
            branch = names[place] if len(calls) == 2 else "both" if count == 2 * rows else "only"
            if self._recording and step.index in self._recording.steps:
                self._recording.calls.append(Call(step.index, float(step.timestep), branch, inputs, output))
        self._new = []
