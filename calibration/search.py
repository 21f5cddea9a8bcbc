"""Searching plans by their surrogate, without the model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from zeus_trt.calibration.objective import weigh_errors
from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import WINDOWS, Plan, Predictor, SolverProgram
from zeus_trt.zeus_graph.calibrated_plan import MEAN
from zeus_trt.zeus_graph.plan_search import check_nfe, descend, make_starts
from zeus_trt.zeus_graph.predictor import Row
from zeus_trt.zeus_graph.surrogate import Surrogate, list_rows, weigh_error

ORDERS = (3, 4)
"""How many past full outputs a fitted predictor may read: both are tried."""


def search(
    program: SolverProgram,
    stats: TrajectoryStats,
    nfe: int,
    *,
    others: Sequence[tuple[SolverProgram, TrajectoryStats]] = (),
    objective: str = MEAN,
    restarts: int = 2,
    seed: int = 0,
) -> tuple[Plan, ...]:
    """Finds plans of ``nfe`` full steps with fitted predictors, by local search from several starts.

    A move shifts one full step to the place of a skipped one; the best move is taken until none helps.

    Args:
        program: The traced solver.
        stats: Recorded trajectories of this solver.
        nfe: Number of full steps, 3 or more.
        others: Further solvers that the plans have to serve, with their trajectories.
        objective: As in ``average``: which trajectories count.
        restarts: Random starts besides the regular ones.
        seed: Of the random starts.

    Returns:
        The local optima with their predictors, best predicted first within each order, the orders in turn.

    Raises:
        ZeusError: An impossible ``nfe``, or trajectories of another number of steps.
    """
    count = program.num_evaluations
    check_nfe(nfe, count)
    for one in (stats, *(other for _, other in others)):
        if one.num_evaluations != count:
            raise ZeusError(
                f"recorded trajectories: got {one.num_evaluations} evaluations; expected the solver's {count}. "
                "Record this solver."
            )
    if nfe == count:
        return (Plan("F" * count),)
    parts = [
        (solver, weigh_trajectories(solver, one, nfe, objective), one.feedback)
        for solver, one in ((program, stats), *others)
    ]
    if others:
        parts = [_normalise(*part, nfe) for part in parts]
    starts = make_starts(count, nfe, restarts, seed)
    found = []
    for order in ORDERS:
        surrogate = Surrogate(*parts[0], order, others=[Surrogate(*part, order) for part in parts[1:]])
        optima: dict[bytes, tuple[float, np.ndarray]] = {}
        for start in starts:
            error, full = descend(surrogate, start)
            optima[full.tobytes()] = (error, full)
        best = sorted(optima.values(), key=lambda one: (one[0], one[1].tobytes()))
        found.append([surrogate.fit(full[None]).plan(0) for _, full in best])
    return interleave(*found)


def interleave(*lists: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans of several lists in turn, all of them."""
    turns = zip_longest(*lists)
    return tuple(plan for turn in turns for plan in turn if plan is not None)


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


def weigh_trajectories(program: SolverProgram, stats: TrajectoryStats, nfe: int, objective: str = MEAN) -> np.ndarray:
    """The mean of the products, each trajectory weighted as ``weigh_errors`` does."""
    errors = predict_errors(program, stats, _make_line(program, nfe))
    weights = weigh_errors(errors, objective)
    return np.einsum("t,tij->ij", weights / weights.sum(), stats.products)


def _make_line(program: SolverProgram, nfe: int) -> Plan:
    """What trajectories and solvers are compared by: evenly spread steps, the line through the last two outputs."""
    return replace(Plan.spread(program.num_evaluations, nfe), predictor=Predictor.parse("lagrange-2"))


def _normalise(
    program: SolverProgram, gram: np.ndarray, feedback: np.ndarray, nfe: int
) -> tuple[SolverProgram, np.ndarray, np.ndarray]:
    """Products in the unit of the line's error, so that the weights are fitted to every solver alike."""
    weights = weigh_error(program, list_rows(program, _make_line(program, nfe)), feedback)
    return program, gram / (weights @ gram @ weights), feedback
