"""The whole trajectory as numbers: one matrix per full step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor


@dataclass(frozen=True, eq=False)
class SamplingProgram(json_file.Program):
    """Solver, step plan and predictor in one table of coefficients.

    The state is a stack of latents that begins as ``[initial sample]``; the first model
    input is ``first_input * sample``. Full step k calls the denoiser at ``timesteps[k]``,
    and its output o gives ``[next state; next input] = matrices[k] @ [state; o]``. The
    last matrix has one row: the final sample.

    Args:
        steps: Index of every full step among the evaluations.
        timesteps: Timestep of every full step.
        matrices: Per full step k shape (L_(k+1) + 1, L_k + 1), float64; the last (1, L_k + 1).
        first_input: Factor on the initial sample for the first model input.
        init_noise_sigma: Standard deviation of the initial sample.
        plan: The step plan, one letter per evaluation.
        predictor: The predictor as JSON data.
        solver: Fingerprint of the folded ``SolverProgram``.

    Raises:
        ZeusError: The parts do not fit each other.
    """

    _thing = "sampling program"
    _advice = "Fold it again."

    steps: tuple[int, ...]
    timesteps: tuple[float, ...]
    matrices: tuple[np.ndarray, ...]
    first_input: float
    init_noise_sigma: float
    plan: str
    predictor: Mapping[str, Any]
    solver: str

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "steps", tuple(int(step) for step in self.steps))
            object.__setattr__(self, "timesteps", tuple(float(t) for t in self.timesteps))
            json_file.freeze([self.timesteps, (self.first_input, self.init_noise_sigma)], 1)
            object.__setattr__(self, "matrices", json_file.freeze(self.matrices, 2))
            object.__setattr__(self, "predictor", Predictor.from_json(self.predictor).to_json())
            self._check_shapes()
        except (TypeError, ValueError, AttributeError) as error:
            raise self._refuse(error) from error

    def _check_shapes(self) -> None:
        if self.steps != Plan(self.plan).full_steps:
            raise ValueError("its steps are not the full steps of its plan")
        if not len(self.steps) == len(self.timesteps) == len(self.matrices):
            raise ValueError("its lists differ in length")
        rows = 2
        for k, matrix in enumerate(self.matrices):
            if matrix.shape[1] != rows or rows == 1:
                raise ValueError(f"the shape of full step {k} does not follow from those before")
            rows = matrix.shape[0]
        if rows != 1:
            raise ValueError("the last matrix has more than one row")

    @property
    def nfe(self) -> int:
        """How often a run calls the denoiser."""
        return len(self.steps)

    @property
    def num_latents(self) -> int:
        """The most latents that are alive between two full steps; the model output is not counted."""
        return max(matrix.shape[1] - 1 for matrix in self.matrices)

    def describe(self) -> str:
        """The program for a person, a line per full step: x the sample, h1, h2 ... other latents, o the output."""
        lines = [f"{self.nfe} full steps, {self.num_latents} latents, fingerprint {self.fingerprint[:12]}"]
        lines.append(f"x = {self.init_noise_sigma:.6g} noise; input = {self.first_input:.6g} x")
        for step, timestep, matrix in zip(self.steps, self.timesteps, self.matrices, strict=True):
            sources = [*_latent_names(matrix.shape[1] - 1), "o"]
            targets = _latent_names(1) if len(matrix) == 1 else [*_latent_names(len(matrix) - 1), "input"]
            sums = [f"{target} = {_write_sum(row, sources)}" for target, row in zip(targets, matrix, strict=True)]
            if len(matrix) > 1 and np.array_equal(matrix[0], matrix[-1]):
                sums[-1] = "input = new x"
            lines.append(f"step {step:>3}, t {timestep:>8.3f}: {'; '.join(sums)}")
        return "\n".join(lines)


def _latent_names(count: int) -> list[str]:
    return ["x", *(f"h{i}" for i in range(1, count))]


def _write_sum(row: np.ndarray, names: list[str]) -> str:
    terms = [f"{weight:+.6g} {name}" for weight, name in zip(row, names, strict=True) if weight]
    return " ".join(terms) or "0"
