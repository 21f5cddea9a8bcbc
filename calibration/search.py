"""Searching plans by their surrogate, without the model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import WINDOWS, Plan, Predictor, SolverProgram
from zeus_trt.zeus_graph.plan_search import check_nfe, descend, make_starts
from zeus_trt.zeus_graph.predictor import Row
from zeus_trt.zeus_graph.surrogate import Surrogate

ORDERS = (3, 4)
"""How many past full outputs a fitted predictor may read: both are tried."""


def search(
    program: SolverProgram, stats: TrajectoryStats, nfe: int, *, restarts: int = 2, seed: int = 0
) -> tuple[Plan, ...]:
    """Finds plans of ``nfe`` full steps with fitted predictors, by local search from several starts.

    A move shifts one full step to the place of a skipped one; the best move is taken until none helps.

    Args:
        program: The traced solver.
        stats: Recorded trajectories of this solver.
        nfe: Number of full steps, 3 or more.
        restarts: Random starts besides the regular ones.
        seed: Of the random starts.

    Returns:
        The local optima with their predictors, best predicted first within each order, the orders in turn.

    Raises:
        ZeusError: An impossible ``nfe``, or trajectories of another number of steps.
    """
    count = program.num_evaluations
    check_nfe(nfe, count)
    if stats.num_evaluations != count:
        raise ZeusError(
            f"recorded trajectories: got {stats.num_evaluations} evaluations; expected the solver's {count}. "
            "Record this solver."
        )
    if nfe == count:
        return (Plan("F" * count),)
    weighted = weigh_trajectories(program, stats, nfe)
    starts = make_starts(count, nfe, restarts, seed)
    found = []
    for order in ORDERS:
        surrogate = Surrogate(program, weighted, stats.feedback, order)
        optima: dict[bytes, tuple[float, np.ndarray]] = {}
        for start in starts:
            error, full = descend(surrogate, start)
            optima[full.tobytes()] = (error, full)
        best = sorted(optima.values(), key=lambda one: (one[0], one[1].tobytes()))
        found.append([surrogate.fit(full[None]).plan(0) for _, full in best])
    longest = max(len(candidates) for candidates in found)
    return tuple(candidates[k] for k in range(longest) for candidates in found if k < len(candidates))


def list_uniform(num_evaluations: int, nfe: int) -> tuple[Plan, ...]:
    """Uniform plans of that many full steps: evenly spread, and every window and ratio that meets it, each reading."""
    plans = [Plan.spread(num_evaluations, nfe)]
    for window in WINDOWS.values():
        plans += [Plan.uniform(num_evaluations, ratio, window) for ratio in range(1, num_evaluations)]
    fitting = dict.fromkeys(plan for plan in plans if plan.nfe == nfe)
    found: dict[bytes, Plan] = {}
    for plan in fitting:
        for reading in ("zeus", "zeus-paper", "zeus-previous-full"):
            predictor = Predictor.parse(reading)
            found.setdefault(_resolve(predictor.rows(plan)), replace(plan, predictor=predictor))
    return tuple(found.values())


def _resolve(rows: Sequence[Row | None]) -> bytes:
    """The weights of full outputs in every used one: equal for readings that are the same on this plan."""
    used = np.eye(len(rows))
    for step, row in enumerate(rows):
        if row is not None:
            used[step] = sum(weight * used[source] for source, weight in row.items())
    return used.tobytes()


def weigh_trajectories(program: SolverProgram, stats: TrajectoryStats, nfe: int) -> np.ndarray:
    """The mean of the products, each trajectory weighted by the inverse of its error, so that it is a mean of dB."""
    plan = Plan.spread(program.num_evaluations, nfe)
    errors = predict_errors(program, stats, replace(plan, predictor=Predictor.parse("lagrange-2")))
    weights = 1 / np.maximum(errors, errors.max() * 1e-6)
    return np.einsum("t,tij->ij", weights / weights.sum(), stats.products)
