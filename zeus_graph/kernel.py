"""What the outputs of a model are like, by noise level: laid on any solver's schedule.

Along a trajectory the sample is (1 - s) x0 + s noise, up to a scale, where x0 and noise are what the output predicts at
the noise level s. Its slope u = noise - x0 is the output of a flow model, and with one sample it determines x0 and
noise at every level, so any model's output on any schedule: epsilon, v and flow share one kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.solver_program import SolverProgram

_LEAST = 1e-3  # of the signal and the noise in a sample
_OUTSIDE = 0.05  # of its levels, a kernel still says what outputs are like
_CURVES = ("response", "roughness")


class Laid(NamedTuple):
    """A model's outputs on a solver's schedule of N evaluations.

    Args:
        outputs: (N, R): vectors whose inner products are those of the outputs.
        feedback: (N,): by how much each moves with its model input.
        roughness: (N,): RMS of that part of each output that is like no other output.
    """

    outputs: np.ndarray
    feedback: np.ndarray
    roughness: np.ndarray


@dataclass(frozen=True, eq=False)
class Kernel:
    """The outputs of one model, by noise level: M levels, rank R. Products are means over pixels and trajectories.

    Args:
        name: Whose.
        parameterization: What its denoiser predicted: ``epsilon``, ``v``, ``sample`` or ``flow``.
        levels: (M,): s, rising; 1 is noise alone.
        velocity: (M, R): vectors whose inner products are those of u = noise - x0.
        sample: (R,): that of the sample (1 - s) x0 + s noise at the last level.
        response: (M,): by how much x0 moves when sample / (1 - s) moves by one.
        roughness: (M,): RMS of that part of u that is like u at no other level.
        source: What it was recorded from, JSON data.
    """

    name: str
    parameterization: str
    levels: np.ndarray
    velocity: np.ndarray
    sample: np.ndarray
    response: np.ndarray
    roughness: np.ndarray
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count, rank = self.velocity.shape
        shapes = [one.shape for one in (self.levels, self.response, self.roughness)]
        if shapes != [(count,)] * 3 or self.sample.shape != (rank,):
            raise ValueError("its parts do not fit each other")

    def lay_on(self, program: SolverProgram, shift: float = 0.0) -> Laid:
        """The outputs on a solver's schedule.

        Args:
            program: The traced solver.
            shift: Added to the response.

        Raises:
            ZeusError: A solver whose noise levels or whose parameterization are not known.
        """
        signal, noise = find_levels(program)
        wanted = noise / (signal + noise)
        x0, eps = self._predict(wanted)
        signal, noise = np.maximum(signal, _LEAST), np.maximum(noise, _LEAST)
        response = shift + np.interp(wanted, self.levels, self.response)
        to_x0, to_eps = mix_output(find_parameterization(program), signal, noise)
        outputs = to_x0[:, None] * x0 + to_eps[:, None] * eps
        feedback = to_x0 * response / signal + to_eps * (1 - response) / noise
        rough = np.interp(wanted, self.levels, self.roughness)
        return Laid(outputs, feedback, rough * np.abs(weigh_velocity(program)))

    def covers(self, program: SolverProgram) -> bool:
        """Whether it was recorded at the solver's noise levels."""
        signal, noise = find_levels(program)
        levels = noise / (signal + noise)
        return bool(self.levels[0] - _OUTSIDE <= levels.min() and levels.max() <= self.levels[-1] + _OUTSIDE)

    def _predict(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x0 and noise at noise levels, (N, R) each: the sample is integrated from the last level."""
        grid = np.unique(np.concatenate([self.levels, wanted]))
        slope = np.stack([np.interp(grid, self.levels, one) for one in self.velocity.T], axis=1)
        areas = np.diff(grid)[:, None] * (slope[1:] + slope[:-1]) / 2
        sample = np.concatenate([np.zeros((1, slope.shape[1])), np.cumsum(areas, axis=0)])
        last = np.searchsorted(grid, self.levels[-1])
        sample += self.sample - sample[last]
        places = np.searchsorted(grid, wanted)
        levels = wanted[:, None]
        return sample[places] - levels * slope[places], sample[places] + (1 - levels) * slope[places]

    def to_json(self) -> dict[str, Any]:
        """As JSON data, numbers of four digits."""
        numbers = {name: _round(getattr(self, name)) for name in ("levels", "velocity", "sample", *_CURVES)}
        named = {"name": self.name, "parameterization": self.parameterization, "source": dict(self.source)}
        return {**named, **numbers}


def find_parameterization(program: SolverProgram) -> str:
    """What the denoiser predicts: ``epsilon``, ``v``, ``sample`` or ``flow``.

    Raises:
        ZeusError: Something else, or it is not known.
    """
    config, said = program.config, program.prediction_type
    if said == "flow_prediction" or config.get("use_flow_sigmas") or program.scheduler.startswith("FlowMatch"):
        return "flow"
    known = {"epsilon": "epsilon", "v_prediction": "v", "sample": "sample"}
    if said not in known or "sigma_data" in config:  # EDM scales what goes in and what comes out
        raise _refuse(program, f"a denoiser that predicts {said} in its own scale")
    return known[said]


def find_levels(program: SolverProgram) -> tuple[np.ndarray, np.ndarray]:
    """How much of x0 and of noise is in each model input, (N,) each.

    Raises:
        ZeusError: The solver does not say its sigmas.
    """
    if program.sigmas is None:
        raise _refuse(program, "no sigmas")
    sigmas = np.array(program.sigmas)
    if find_parameterization(program) == "flow":
        return 1 - sigmas, sigmas
    scale = 1 / np.sqrt(1 + sigmas**2)
    return scale, sigmas * scale


def mix_output(parameterization: str, signal: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of x0 and of noise in a denoiser's output, (N,) each."""
    one, zero = np.ones_like(signal), np.zeros_like(signal)
    return {"epsilon": (zero, one), "sample": (one, zero), "v": (-noise, signal), "flow": (-one, one)}[parameterization]


def weigh_velocity(program: SolverProgram) -> np.ndarray:
    """(N,): by how much a denoiser's output moves when u = noise - x0 does, of one sample."""
    signal, noise = find_levels(program)
    level = noise / (signal + noise)
    to_x0, to_eps = mix_output(find_parameterization(program), signal, noise)
    return (1 - level) * to_eps - level * to_x0


def _round(values: np.ndarray) -> Any:
    return np.vectorize(lambda value: float(f"{value:.4g}"))(values).tolist()


def _refuse(program: SolverProgram, found: str) -> ZeusError:
    return ZeusError(
        f"prior: got {program.scheduler} with {found}; expected a solver of epsilon, v, sample or flow that knows its "
        "sigmas. Calibrate a plan."
    )
