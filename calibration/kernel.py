"""Recorded trajectories as a kernel of the prior."""

import numpy as np

from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.kernel import Kernel, find_levels, find_parameterization, mix_output, weigh_velocity
from zeus_trt.zeus_graph.solver_program import SolverProgram

_LEVELS = 32
_RANK = 10
_SMOOTH = 3  # a difference of this order of a smooth curve is small
_LEAST_WEIGHT = 0.05  # of u in an output
_LEAST = 1e-3  # of the signal and the noise in a sample, where something is divided by it


def make_kernel(name: str, program: SolverProgram, stats: TrajectoryStats) -> Kernel:
    """Reduces recorded trajectories to the kernel of their velocities, by noise level.

    Args:
        name: Of the model.
        program: The traced solver that they were recorded with.
        stats: The trajectories, with their initial samples.

    Raises:
        ZeusError: A solver that the prior does not know, or trajectories that were recorded without initial samples.
    """
    if stats.initial is None:
        raise ZeusError(
            "recorded trajectories: got some without initial samples; expected those of this version. Record again."
        )
    signal, noise = find_levels(program)
    velocity, sample = _find_velocity(program, signal, noise)
    own = noise / (signal + noise)
    levels = np.linspace(own.min(), own.max(), _LEVELS)
    rows = np.vstack([_resample(levels, own, velocity), _resample(levels[-1:], own, sample)])
    whole = np.concatenate([stats.initial[:, 1:, None], stats.products], axis=2)
    whole = np.concatenate([stats.initial[:, None], whole], axis=1).mean(axis=0)
    values, vectors = np.linalg.eigh(rows @ whole @ rows.T)
    factor = vectors[:, -_RANK:] * np.sqrt(np.maximum(values[-_RANK:], 0.0))
    curves = np.stack([_find_response(program, stats.feedback, signal, noise), _find_roughness(program, stats)], axis=1)
    return Kernel(
        name, find_parameterization(program), levels, factor[:-1], factor[-1], *_resample(levels, own, curves).T
    )


def _find_velocity(program: SolverProgram, signal: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """noise - x0, and (1 - s) x0 + s noise, of every evaluation, over the initial sample and all outputs."""
    count = program.num_evaluations
    outputs = np.eye(count, count + 1, 1)
    inputs, state = [], np.eye(1, count + 1)
    for row, matrix, output in zip(program.input_rows, program.matrices, outputs, strict=True):
        inputs.append(row @ state)
        state = matrix @ np.vstack([state, output])
    signal, noise = signal[:, None], noise[:, None]
    to_x0, to_eps = mix_output(find_parameterization(program), signal, noise)
    scale = to_eps * signal - to_x0 * noise  # of the two equations: input and output of x0 and noise
    x0, eps = (to_eps * inputs - noise * outputs) / scale, (signal * outputs - to_x0 * inputs) / scale
    return eps - x0, np.array(inputs) / (signal + noise)


def _find_response(program: SolverProgram, feedback: np.ndarray, signal: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """By how much x0 moves when x0 + noise / signal does, from how the output moves."""
    signal, noise = np.maximum(signal, _LEAST), np.maximum(noise, _LEAST)
    to_x0, to_eps = mix_output(find_parameterization(program), signal, noise)
    return (feedback - to_eps / noise) / (to_x0 / signal - to_eps / noise)


def _find_roughness(program: SolverProgram, stats: TrajectoryStats) -> np.ndarray:
    """(N,): RMS of that part of u that is unlike its neighbours, from third differences of the outputs."""
    count = program.num_evaluations
    if count <= _SMOOTH:
        return np.zeros(count)
    differences = np.diff(np.eye(count), _SMOOTH, axis=0)
    squares = np.einsum("ki,ij,kj->k", differences, stats.products.mean(axis=0), differences)
    rough = np.sqrt(np.maximum(squares, 0.0) / np.square(differences[0]).sum())
    middles = np.arange(len(rough)) + _SMOOTH / 2
    return np.interp(np.arange(count), middles, rough) / np.maximum(np.abs(weigh_velocity(program)), _LEAST_WEIGHT)


def _resample(levels: np.ndarray, own: np.ndarray, rows: np.ndarray) -> np.ndarray:
    order = np.argsort(own)
    return np.stack([np.interp(levels, own[order], column[order]) for column in rows.T], axis=1)
