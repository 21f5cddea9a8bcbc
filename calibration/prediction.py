"""What recorded trajectories say about a plan, without the model."""

import numpy as np

from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.zeus_graph import Plan, SolverProgram
from zeus_trt.zeus_graph.surrogate import list_rows, weigh_error


def predict_errors(program: SolverProgram, stats: TrajectoryStats, plan: Plan) -> np.ndarray:
    """(T,): mean squared error of the final latents of every recorded trajectory, with skipped steps."""
    quantized = [step for step, letter in enumerate(plan.steps) if letter == "Q"]
    weights = weigh_error(program, list_rows(program, plan), stats.feedback, quantized)
    of_outputs, of_errors = np.split(weights, [program.num_evaluations])
    errors = np.einsum("i,tij,j->t", of_outputs, stats.products, of_outputs)
    if quantized and stats.noise is not None:
        errors += stats.noise @ of_errors**2
    return np.maximum(errors, 0.0)


def predict_psnr(program: SolverProgram, stats: TrajectoryStats, plan: Plan) -> float:
    """Predicted PSNR in dB of the final latents to the full run's, for values in -1..1; mean over trajectories."""
    errors = np.maximum(predict_errors(program, stats, plan), 1e-20)
    return float(np.mean(10 * np.log10(4 / errors)))
