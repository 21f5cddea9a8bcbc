"""Searching plans by their surrogate, without the model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zeus_trt.calibration.surrogate import Surrogate, predict_errors
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import WINDOWS, Plan, Predictor, SolverProgram
from zeus_trt.zeus_graph.predictor import Row

ORDERS = (3, 4)
"""How many past full outputs a fitted predictor may read: both are tried."""

_EXPONENTS = (0.8, 1.0, 1.25, 1.5)  # of the starts: above 1 denser at the beginning


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
            error, full = _descend(surrogate, start)
            optima[full.tobytes()] = (error, full)
        best = sorted(optima.values(), key=lambda one: (one[0], one[1].tobytes()))
        found.append([surrogate.fit(full[None]).plan(0) for _, full in best])
    longest = max(len(candidates) for candidates in found)
    return tuple(candidates[k] for k in range(longest) for candidates in found if k < len(candidates))


def check_nfe(nfe: int, num_evaluations: int) -> None:
    """Raises ZeusError unless a plan can have that many full steps."""
    least = min(3, num_evaluations)
    if not least <= nfe <= num_evaluations:
        raise ZeusError(
            f"budget: got {nfe} full steps; expected {least}..{num_evaluations}. The first two steps and the last are "
            "always full."
        )


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


def make_starts(count: int, nfe: int, restarts: int, seed: int) -> list[np.ndarray]:
    """(N,) bool each: warped spreads, and random plans."""
    starts = {}
    inner = np.arange(1, nfe - 2)
    for exponent in _EXPONENTS:
        steps = [0, 1, count - 1, *(1 + np.round((count - 2) * (inner / (nfe - 2)) ** exponent).astype(int))]
        full = np.isin(np.arange(count), steps)
        if full.sum() < nfe:  # two fell on one place
            full[np.flatnonzero(~full)[: nfe - full.sum()]] = True
        starts[full.tobytes()] = full
    generator = np.random.default_rng(seed % 2**64)  # numpy takes no negative ones
    for _ in range(restarts):
        steps = [0, 1, count - 1, *(2 + generator.permutation(count - 3)[: nfe - 3])]
        full = np.isin(np.arange(count), steps)
        starts[full.tobytes()] = full
    return list(starts.values())


def _descend(surrogate: Surrogate, full: np.ndarray) -> tuple[float, np.ndarray]:
    """The local optimum below a start, and its error."""
    longest = max(2 * -(-full.size // int(full.sum())), int(np.diff(np.flatnonzero(full)).max()))
    best = float(surrogate.fit(full[None]).errors[0])
    while True:
        moves = list_moves(full, longest)
        if not len(moves):
            return best, full
        errors = surrogate.fit(moves).errors
        place = int(errors.argmin())
        if not errors[place] < best * (1 - 1e-6):
            return best, full
        best, full = float(errors[place]), moves[place]


def list_moves(full: np.ndarray, longest: int) -> np.ndarray:
    """(moves, N) bool: one inner full step shifted, no gap longer than ``longest``."""
    inner = [step for step in np.flatnonzero(full) if 2 <= step < full.size - 1]
    pairs = np.array([(old, new) for old in inner for new in np.flatnonzero(~full)], int).reshape(-1, 2)
    moves = np.repeat(full[None], len(pairs), axis=0)
    places = np.arange(len(pairs))
    moves[places, pairs[:, 0]], moves[places, pairs[:, 1]] = False, True
    return moves[[int(np.diff(np.flatnonzero(move)).max()) <= longest for move in moves]]
