"""A few trajectories recorded without probes, completed by what the outputs of other models are like."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, Predictor, SolverProgram
from zeus_trt.zeus_graph.kernel import Kernel, Laid
from zeus_trt.zeus_graph.surrogate import list_rows, weigh_error

PRIOR_TRAJECTORIES = 0.03
"""So many trajectories the prior counts as: it steers one recorded trajectory a little, and sixteen hardly."""


def is_known(program: SolverProgram, kernels: Sequence[Kernel]) -> bool:
    """Whether the prior says what outputs are like on this solver's schedule."""
    return bool(_lay(program, kernels))


def shrink(program: SolverProgram, stats: TrajectoryStats, nfe: int, kernels: Sequence[Kernel]) -> TrajectoryStats:
    """Completes a few trajectories that were recorded without probes: the prior knows how outputs respond to errors.

    Their feedback is the mean of the prior's, and their inner products move a little towards those of the prior. The
    products of each model are scaled to the error that each trajectory has with evenly spread steps and the line
    through the last two outputs.

    Args:
        program: The traced solver.
        stats: Recorded trajectories of this solver; with probes they are returned as they are.
        nfe: Full steps of the plans that will be searched.
        kernels: The models of the prior; without one, and with a solver that the prior does not know, ``stats`` is
            returned as it is.
    """
    if not np.isnan(stats.responses).all() or not (laid := _lay(program, kernels)):
        return stats
    feedback, count = np.mean([one.feedback for one in laid], axis=0), len(stats.numbers)
    stats = replace(stats, responses=np.tile(feedback, (count, 1, 1)))
    line = replace(Plan.spread(program.num_evaluations, nfe), predictor=Predictor.parse("lagrange-2"))
    weights = weigh_error(program, list_rows(program, line), feedback)
    known = np.mean([_normalise(outputs, weights) for outputs, *_ in laid], axis=0)
    share, own = PRIOR_TRAJECTORIES / count, predict_errors(program, stats, line)[:, None, None]
    return replace(stats, products=(1 - share) * stats.products + share * own * known)


def _lay(program: SolverProgram, kernels: Sequence[Kernel]) -> list[Laid]:
    try:
        return [kernel.lay_on(program) for kernel in kernels]
    except ZeusError:
        return []


def _normalise(outputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(N, N): the outputs' products, where the run whose error has these weights has the error one."""
    return outputs @ outputs.T / np.square(weights @ outputs).sum()
