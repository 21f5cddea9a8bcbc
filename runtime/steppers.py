"""Steppers: trajectories that are asked for their next call of the denoiser.

    while call := stepper.call:
        stepper.feed(denoiser(*call))

``call`` is (latents, timestep): what the denoiser reads at the next full step, or None at the end. Both tensors are the
caller's to overwrite, and hold until ``feed``: program mode uses their memory again. ``feed`` reads the output once and
keeps no reference to it, so an engine may answer every call in the same buffer; it then goes through all skipped steps
up to the next call.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from zeus_trt.zeus_graph import Policy
from zeus_trt.zeus_graph.row_policy import RowPolicy
from zeus_trt.zeus_graph.sampling_program import SamplingProgram

Call = tuple[torch.Tensor, torch.Tensor]
"""Model input (batch, ...) and float32 timestep (batch,) of a full step."""

Blend = Callable[[Any, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""Changes the latents after each step; arguments: scheduler, next timestep (None after the last step), latents."""

_REMEMBERED = 64  # programs

_Terms = tuple[tuple[int, float], ...]  # source row -> weight


class Stepper(Protocol):
    """What a loop needs of a trajectory."""

    @property
    def call(self) -> Call | None:
        """The next full step's call; None at the end."""

    @property
    def index(self) -> int:
        """Evaluation that ``call`` belongs to."""

    @property
    def letter(self) -> str:
        """The engine that ``call`` is for: ``F`` the full one, ``Q`` the quantized one."""

    @property
    def latents(self) -> torch.Tensor:
        """The sample, (batch, ...)."""

    def feed(self, output: torch.Tensor) -> None:
        """Takes the output of ``call``, (batch, ...), and moves on to the next call."""


@dataclass(frozen=True)
class Step:
    """One step of a trajectory, after it ran.

    Args:
        index: Position in the plan.
        kind: ``F`` full, ``Q`` full by the quantized engine, ``X`` extrapolated, ``R`` reused.
        timestep: The scheduler's timestep at this step.
        latents: The sample after the step, (batch, ...).
        output: The denoiser output that the solver used, (batch, ...).
        drift: At a full step after skipped ones, where drift is measured: the relative distance between the output
            and its prediction, a tensor () on the device.
    """

    index: int
    kind: str
    timestep: float
    latents: torch.Tensor
    output: torch.Tensor
    drift: torch.Tensor | None = None


class SchedulerStepper:
    """Step mode: the scheduler's own ``step``, on full or predicted outputs.

    With every step full this is the plain diffusers loop, to the bit.

    Args:
        scheduler: A diffusers scheduler whose schedule is set; this stepper alone uses it.
        latents: The initial sample, (batch, ...); outputs are cast to its dtype.
        policy: Decides which steps are full, and predicts the other outputs.
        begin: Index of the first evaluation in the scheduler's timesteps.
        generator: Source of a stochastic scheduler's random numbers; torch's global one by default.
        blend: Changes the latents after each step, for inpainting.
    """

    def __init__(
        self,
        scheduler: Any,
        latents: torch.Tensor,
        policy: Policy,
        *,
        begin: int = 0,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        blend: Blend | None = None,
    ):
        self._scheduler, self._policy, self._blend = scheduler, policy, blend
        self._timesteps = scheduler.timesteps[begin:]
        self._times = [float(timestep) for timestep in self._timesteps.tolist()]
        self._scale = getattr(scheduler, "scale_model_input", lambda latents, timestep: latents)
        draws = generator is not None and "generator" in inspect.signature(scheduler.step).parameters
        self._arguments = {"generator": generator} if draws else {}
        self.latents, self.index = latents, 0
        self.call: Call | None = self._scale_input()

    @property
    def is_done(self) -> bool:
        """Whether every step ran."""
        return self.index == len(self._times)

    @property
    def letter(self) -> str:
        """The engine that ``call`` is for: ``F`` the full one, ``Q`` the quantized one."""
        return "Q" if self._policy.plan.steps[self.index] == "Q" else "F"

    @property
    def rows(self) -> list[int] | None:
        """The rows of ``call`` whose output is read, where the policy decides by row; None for all."""
        return self._policy.list_full(self.index) if isinstance(self._policy, RowPolicy) else None

    @property
    def row_plans(self) -> tuple[str, ...]:
        """What each row did so far, and what is expected, in letters, where the policy decides by row."""
        return self._policy.row_plans if isinstance(self._policy, RowPolicy) else ()

    def feed(self, output: torch.Tensor) -> None:
        """Takes the output of ``call``, and goes through all skipped steps up to the next call."""
        for _ in self.advance(output):
            pass

    def advance(self, output: torch.Tensor) -> Iterator[Step]:
        """As ``feed``; yields each step as it is done."""
        output = output.detach().to(self.latents.dtype, copy=True)
        drift = self._policy.take(self.index, output)
        yield self._step(self.letter, output, drift)
        while not self.is_done and not self._policy.is_full(self.index):
            yield self._step(self._policy.plan.steps[self.index], self._policy.predict(self.index))

    def _step(self, kind: str, output: torch.Tensor, drift: torch.Tensor | None = None) -> Step:
        index, timestep = self.index, self._timesteps[self.index]
        latents = self._scheduler.step(output, timestep, self.latents, return_dict=False, **self._arguments)[0]
        self.index += 1
        following = None if self.is_done else self._timesteps[self.index]
        self.latents = self._blend(self._scheduler, following, latents) if self._blend else latents
        self.call = None if self.is_done else self._scale_input()
        return Step(index, kind, self._times[index], self.latents, output, drift)

    def _scale_input(self) -> Call | None:
        """The call of this step, if it is full; scaled at skipped steps too: schedulers find their place here."""
        timestep = self._timesteps[self.index]
        self._policy.see(self.index, self.latents)
        model_input = self._scale(self.latents, timestep)
        if not self._policy.is_full(self.index):
            return None
        model_input = model_input.clone() if _shares_memory(model_input, self.latents) else model_input
        return model_input, timestep.to(torch.float32).repeat(len(self.latents))


class ProgramStepper:
    """Program mode: a sampling program laid out on a device. A skipped step costs nothing.

    The stepper owns all memory that it needs, twice ``num_latents`` latents and two more, and allocates nothing while
    it runs, so that it can be captured in a CUDA graph together with the denoiser.

    The products of matrix and state are written as sums of scaled latents: in full float32 whatever the TF32 settings
    are, and without the thread pool of a matrix library beside that of the engine.

    Args:
        program: The folded program.
        noise: Standard normal noise (batch, ...); shape, device and dtype of the state (float32; float64 for tests).
    """

    def __init__(self, program: SamplingProgram, noise: torch.Tensor):
        self.program = program
        self._updates = _read_updates(program)
        timesteps = torch.tensor(program.timesteps, dtype=torch.float32, device=noise.device)
        self._timesteps = list(timesteps[:, None].repeat(1, len(noise)))
        # The state, twice; the model input; the output where it has another dtype, or is the model input.
        self._buffers = noise.new_zeros(2, program.num_latents, *noise.shape)
        self._input, self._output = torch.empty_like(noise), torch.empty_like(noise)
        self.restart(noise)

    def restart(self, noise: torch.Tensor) -> "ProgramStepper":
        """Begins another trajectory in the same memory, from noise of the same shape; returns the stepper."""
        self._place = 0
        self._now, self._then = (list(buffer) for buffer in self._buffers)
        torch.mul(noise, self.program.init_noise_sigma, out=self._now[0])
        torch.mul(self._now[0], self.program.first_input, out=self._input)
        return self

    @property
    def call(self) -> Call | None:
        """The next full step's call; None at the end."""
        if self._place == self.program.nfe:
            return None
        return self._input, self._timesteps[self._place]

    @property
    def index(self) -> int:
        """Evaluation that ``call`` belongs to."""
        return self.program.steps[self._place]

    @property
    def letter(self) -> str:
        """The engine that ``call`` is for: ``F`` the full one, ``Q`` the quantized one."""
        return self.program.plan[self.index]

    @property
    def latents(self) -> torch.Tensor:
        """The sample: a view of the stepper's memory, which ``restart`` overwrites."""
        return self._now[0]

    def feed(self, output: torch.Tensor) -> None:
        """Takes the output of ``call``: the matrix of this full step holds the skipped steps after it."""
        output = output.detach()
        if output.dtype != self._output.dtype or _shares_memory(output, self._input):
            output = self._output.copy_(output)
        update, sources = self._updates[self._place], [*self._now, output]
        for target, terms in zip(self._then, update.state, strict=False):
            _combine(sources, terms, target)
        if update.input:
            _combine(sources, update.input, self._input)
        else:
            torch.mul(self._then[0], update.scale, out=self._input)
        self._now, self._then = self._then, self._now
        self._place += 1


@dataclass(frozen=True)
class _Update:
    """A full step as sums: the new state, and the next model input, a sum too or a multiple of the new sample."""

    state: tuple[_Terms, ...]
    input: _Terms | None
    scale: float

    @classmethod
    def read(cls, matrix: np.ndarray) -> "_Update":
        if len(matrix) == 1:
            return cls((_read_terms(matrix[0]),), None, 1.0)
        sample, model_input = matrix[0], matrix[-1]
        scale = float(model_input @ sample / (sample @ sample))
        is_multiple = np.allclose(model_input, scale * sample, rtol=1e-12, atol=0)
        state = tuple(_read_terms(row) for row in matrix[:-1])
        return cls(state, None if is_multiple else _read_terms(model_input), scale)


@lru_cache(_REMEMBERED)
def _read_updates(program: SamplingProgram) -> tuple[_Update, ...]:
    return tuple(map(_Update.read, program.matrices))


def _read_terms(row: np.ndarray) -> _Terms:
    return tuple((int(k) if k < len(row) - 1 else -1, float(row[k])) for k in np.flatnonzero(row))


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _combine(sources: Sequence[torch.Tensor], terms: _Terms, out: torch.Tensor) -> torch.Tensor:
    (first, weight), *others = terms
    if weight != 1.0 or not others:
        torch.mul(sources[first], weight, out=out)
    else:
        (second, weight), *others = others
        torch.add(sources[first], sources[second], alpha=weight, out=out)
    for source, weight in others:
        out.add_(sources[source], alpha=weight)
    return out
