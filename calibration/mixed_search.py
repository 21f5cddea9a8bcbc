"""Searching plans of two engines: which steps are full, and which of these the quantized engine runs."""

from collections.abc import Sequence
from math import floor

import numpy as np

from zeus_trt.calibration.search import ORDERS, weigh_trajectories
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, SolverProgram
from zeus_trt.zeus_graph.plan_search import list_moves, make_starts
from zeus_trt.zeus_graph.surrogate import Fit, Surrogate

_KEPT = 4  # pairs of counts that go on to the thorough search
_ROUNDS = 3  # of moves and swaps, in the quick search
_SLACK = 1e-9


def search_mixed(
    program: SolverProgram, stats: TrajectoryStats, budget: float, quantized_cost: float, *, seed: int = 0
) -> tuple[Plan, ...]:
    """Finds plans of F, Q, X and R whose cost is at most a budget, with fitted predictors.

    For every number of ``F`` that the budget allows, the rest of it goes to ``Q``. Local search moves full steps to
    the places of skipped ones, and swaps the engines of two full steps. The numbers whose quick search did best are
    searched until nothing helps.

    Args:
        program: The traced solver.
        stats: Trajectories of this solver, recorded with the quantized engine.
        budget: The cost allowed, in calls of the full engine.
        quantized_cost: That of a call of the quantized engine.
        seed: Of the random starts.

    Returns:
        The local optima, best predicted first.

    Raises:
        ZeusError: A cost out of range, a budget that no plan meets, or trajectories without the quantized engine.
    """
    count = program.num_evaluations
    if stats.noise is None:
        raise ZeusError(
            "recorded trajectories: got none of a quantized engine; expected its errors beside the outputs. Record "
            "them with quantized=True."
        )
    counts = list_counts(count, budget, quantized_cost)
    gram = weigh_trajectories(program, stats, max(min(3, count), min(count - 1, floor(budget))))
    noise = stats.noise.mean(0)
    quick = Surrogate(program, gram, stats.feedback, ORDERS[0], noise)
    found = []
    for full, quantized in counts:
        start = _start(make_starts(count, full + quantized, 0, seed)[1], full)
        found.append(_descend(quick, start, _ROUNDS))
    found.sort(key=lambda one: one[0])
    optima: dict[bytes, tuple[float, Plan]] = {}
    for order in ORDERS:
        surrogate = Surrogate(program, gram, stats.feedback, order, noise)
        for _, kinds in found[:_KEPT]:
            error, best = _descend(surrogate, kinds)
            optima[best.tobytes() + bytes([order])] = (error, _fit(surrogate, best[None]).plan(0))
    return tuple(plan for _, plan in sorted(optima.values(), key=lambda one: (one[0], str(one[1]))))


def list_counts(num_evaluations: int, budget: float, quantized_cost: float) -> list[tuple[int, int]]:
    """The numbers of ``F`` and ``Q`` steps that a budget buys: all of it is spent.

    Raises:
        ZeusError: A cost out of range, or a budget that buys fewer than three full steps.
    """
    if not 0 < quantized_cost <= 1:
        raise ZeusError(
            f"quantized cost: got {quantized_cost:g}; expected more than 0 and at most 1, in calls of the full engine. "
            "An engine that is slower than the full one has no use."
        )
    found = []
    for full in range(min(num_evaluations, floor(budget + _SLACK)) + 1):
        quantized = min(num_evaluations - full, floor((budget - full) / quantized_cost + _SLACK))
        if min(3, num_evaluations) <= full + quantized < num_evaluations:
            found.append((full, quantized))
    if not found:
        raise ZeusError(
            f"budget: got {budget:g}; expected at least {3 * quantized_cost:g}, and less than all steps cost. The "
            "first two steps and the last are always full."
        )
    return found


def _start(full: np.ndarray, num_exact: int) -> np.ndarray:
    """(N,) letters of a start: 1 for F and 2 for Q at full steps, the F spread evenly among them; 0 at skipped ones."""
    kinds = np.where(full, 2, 0)
    places = np.flatnonzero(full)
    kinds[places[np.linspace(0, places.size - 1, num_exact).round().astype(int)]] = 1
    return kinds


def _fit(surrogate: Surrogate, kinds: np.ndarray) -> Fit:
    return surrogate.fit(kinds > 0, kinds == 2)


def _descend(surrogate: Surrogate, kinds: np.ndarray, rounds: int | None = None) -> tuple[float, np.ndarray]:
    """The local optimum below a start, and its error."""
    full = kinds > 0
    longest = max(2 * -(-kinds.size // int(full.sum())), int(np.diff(np.flatnonzero(full)).max()))
    best = float(_fit(surrogate, kinds[None]).errors[0])
    while rounds is None or rounds > 0:
        moves = [*_list_moves(kinds, longest), *_list_swaps(kinds)]
        if not moves:
            break
        errors = _fit(surrogate, np.array(moves)).errors
        place = int(errors.argmin())
        if not errors[place] < best * (1 - 1e-6):
            break
        best, kinds = float(errors[place]), moves[place]
        rounds = rounds and rounds - 1
    return best, kinds


def _list_moves(kinds: np.ndarray, longest: int) -> Sequence[np.ndarray]:
    """A full step that takes the place of a skipped one, with its engine."""
    moved = []
    for full in list_moves(kinds > 0, longest):
        old, new = np.flatnonzero((kinds > 0) & ~full)[0], np.flatnonzero(full & (kinds == 0))[0]
        other = kinds.copy()
        other[new], other[old] = kinds[old], 0
        moved.append(other)
    return moved


def _list_swaps(kinds: np.ndarray) -> Sequence[np.ndarray]:
    """The engines of two full steps swapped."""
    swapped = []
    for exact in np.flatnonzero(kinds == 1):
        for coarse in np.flatnonzero(kinds == 2):
            other = kinds.copy()
            other[exact], other[coarse] = 2, 1
            swapped.append(other)
    return swapped
