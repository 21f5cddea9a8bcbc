"""The solver as numbers: one matrix per evaluation of the denoiser."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file


@dataclass(frozen=True, eq=False)
class SolverProgram(json_file.Program):
    """A linear, deterministic solver on one schedule.

    The state is a stack of latents that begins as ``[initial sample]``; its entry 0 is
    always the sample. Evaluation i calls the denoiser on ``input_rows[i] @ state`` at
    ``timesteps[i]``, and its output o gives the new state ``matrices[i] @ [state; o]``.
    After the last evaluation the state is ``[sample]``.

    Args:
        scheduler: Class name of the traced scheduler.
        config: Its config as JSON data; private keys are dropped.
        num_steps: The number of steps asked for. Evaluations may be more (Heun: 2N - 1)
            or fewer (a start in the middle).
        begin: Index of the first evaluation in the scheduler's list of timesteps.
        timesteps: Timestep of every evaluation.
        sigmas: Sigma of every evaluation, an abscissa for predictors; None if unknown.
        input_rows: Per evaluation i a row over the state, shape (L_i,), float64.
        matrices: Per evaluation i shape (L_(i+1), L_i + 1), float64.
        init_noise_sigma: Standard deviation of the initial sample.
        prediction_type: What the denoiser predicts, in diffusers' words; None if unknown.

    Raises:
        ZeusError: The parts do not fit each other.
    """

    _thing = "solver program"
    _advice = "Trace the scheduler again."

    scheduler: str
    config: Mapping[str, Any]
    num_steps: int
    begin: int
    timesteps: tuple[float, ...]
    sigmas: tuple[float, ...] | None
    input_rows: tuple[np.ndarray, ...]
    matrices: tuple[np.ndarray, ...]
    init_noise_sigma: float = 1.0
    prediction_type: str | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "config", public_config(self.config))
            object.__setattr__(self, "timesteps", tuple(float(t) for t in self.timesteps))
            if self.sigmas is not None:
                object.__setattr__(self, "sigmas", tuple(float(sigma) for sigma in self.sigmas))
            json_file.freeze([self.timesteps, self.sigmas or ()], 1)
            object.__setattr__(self, "input_rows", json_file.freeze(self.input_rows, 1))
            object.__setattr__(self, "matrices", json_file.freeze(self.matrices, 2))
            self._check_numbers()
            self._check_shapes()
        except (TypeError, ValueError, AttributeError) as error:
            raise self._refuse(error) from error

    def _check_numbers(self) -> None:
        if self.num_steps < 1 or self.begin < 0 or not self.scheduler:
            raise ValueError("it has no steps, a negative begin index, or no scheduler")
        if not 0 < self.init_noise_sigma < math.inf:
            raise ValueError("its init_noise_sigma is not positive and finite")

    def _check_shapes(self) -> None:
        count = len(self.timesteps)
        lists = [self.input_rows, self.matrices] + ([] if self.sigmas is None else [self.sigmas])
        if count == 0 or any(len(entries) != count for entries in lists):
            raise ValueError("its lists differ in length, or are empty")
        size = 1
        for i, (row, matrix) in enumerate(zip(self.input_rows, self.matrices, strict=True)):
            if row.shape != (size,) or matrix.shape[1] != size + 1:
                raise ValueError(f"the shapes of evaluation {i} do not follow from those before")
            size = matrix.shape[0]
        if size != 1:
            raise ValueError("the last matrix has more than one row")

    @property
    def num_evaluations(self) -> int:
        """How often an all-full run calls the denoiser."""
        return len(self.timesteps)

    @property
    def num_latents(self) -> int:
        """The most latents that are alive between two evaluations."""
        return max(row.size for row in self.input_rows)

    def check(
        self,
        scheduler: str,
        config: Mapping[str, Any],
        num_steps: int,
        *,
        begin: int = 0,
        timesteps: Sequence[float] | None = None,
    ) -> "SolverProgram":
        """Returns the program if it belongs to this scheduler and schedule.

        Args:
            scheduler: Class name of the scheduler in use.
            config: Its config, or the content of its scheduler_config.json.
            num_steps: The number of steps asked for.
            begin: Index of the first evaluation in the scheduler's list of timesteps.
            timesteps: The timesteps of every evaluation, where they are known.

        Raises:
            ZeusError: Naming the first thing that differs.
        """
        wanted = public_config(config)
        pairs: list[tuple[str, Any, Any]] = [("scheduler", self.scheduler, scheduler)]
        for key in sorted(set(self.config) | set(wanted)):
            pairs.append((f"config.{key}", self.config.get(key, "nothing"), wanted.get(key, "nothing")))
        pairs += [("num_steps", self.num_steps, num_steps), ("begin", self.begin, begin)]
        if timesteps is not None:
            pairs.append(("number of timesteps", self.num_evaluations, len(timesteps)))
            pairs += [
                (f"timestep {i}", found, float(expected))
                for i, (found, expected) in enumerate(zip(self.timesteps, timesteps, strict=False))
            ]
        for name, found, expected in pairs:
            if found != expected:
                raise ZeusError(
                    f"{self._thing}: got {name} {found!r}; expected {expected!r}. "
                    "It belongs to another solver or schedule: trace this one."
                )
        return self


def public_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's config as JSON data, without private keys such as ``_diffusers_version``."""
    return {key: json_file.plain(value) for key, value in config.items() if not key.startswith("_")}
