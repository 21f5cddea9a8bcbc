"""Where full steps belong: the uniform-skip theorem as we state it, and where it ends.

The paper's own statement is not known to us.

A plan has the full steps 0 and 1, then B blocks of skipped runs r_1 .. r_B with sum S, each followed by a full step.
Theorem: if a run of r skipped steps costs phi(r), whatever the other runs, and phi is convex, then sum phi(r_b) is
least where the runs differ by one at most; if phi is strictly convex, nowhere else.

Cost: the sum over the skipped steps of the worst error, over all outputs whose differences of an order are at most 1.
"""

from itertools import combinations, pairwise

import numpy as np
import pytest

from zeus_trt.zeus_graph import Plan, Predictor


def find_errors(plan, predictor):
    """A row per step: weights of the real outputs in the output used minus the real one."""
    real = np.eye(len(plan))
    used = []
    for step, row in enumerate(Predictor.parse(predictor).rows(plan)):
        used.append(real[step] if row is None else sum(used[source] * weight for source, weight in row.items()))
    return np.stack(used) - real


def find_worst_errors(plan, predictor, order):
    """By step: the largest error of outputs whose differences of this order (1 or 2) are at most 1; exact.

    Summed by parts, an error is a row over the differences, and its worst value the row's absolute sum.
    """
    rows = find_errors(plan, predictor)
    for _ in range(order):
        rows = np.cumsum(rows, axis=1)
        np.testing.assert_allclose(rows[:, -1], 0, atol=1e-9)  # else the class does not bound the error
    return np.abs(rows).sum(axis=1)


def place_runs(runs):
    full = np.cumsum([0, 1, *(run + 1 for run in runs)])
    return Plan.from_full_steps(int(full[-1]) + 1, full.tolist())


def list_runs(total, parts):
    for cuts in combinations(range(total + parts - 1), parts - 1):
        borders = (-1, *cuts, total + parts - 1)
        yield tuple(stop - start - 1 for start, stop in pairwise(borders))


def is_balanced(runs):
    return max(runs) - min(runs) <= 1


def find_best(total, parts, cost):
    costs = {runs: cost(runs) for runs in list_runs(total, parts)}
    least = min(costs.values())
    return {runs for runs, value in costs.items() if value < least + 1e-9}


SCHEMES = [
    ("reuse", 1, [0, 1, 3, 6, 10, 15, 21]),
    ("extrapolate", 2, [0, 1, 4, 10, 20, 35, 56]),
    ("zeus", 1, [0, 2, 4, 8, 12, 18, 24]),
]


@pytest.mark.parametrize(("predictor", "order", "costs"), SCHEMES)
def test_the_cost_of_a_run_is_convex(predictor, order, costs):
    """Reuse: r (r+1) / 2. Lines: r (r+1) (r+2) / 6. Interleaved: 2 floor((r+1)^2 / 4). Both outputs are computed."""
    found = [find_worst_errors(place_runs([run]), predictor, order).sum() for run in range(7)]
    assert found == pytest.approx(costs)
    assert np.all(np.diff(found, n=2) >= 0)
    assert (np.diff(found, n=2).min() > 0) == (predictor != "zeus")


@pytest.mark.parametrize(("total", "parts"), [(8, 4), (7, 4), (9, 3), (10, 4), (2, 5)])
@pytest.mark.parametrize(("predictor", "order", "costs"), SCHEMES)
def test_balanced_runs_cost_least(predictor, order, costs, total, parts):
    """All of them, and for a strictly convex cost only they; interleaved runs have ties."""
    alone = [find_worst_errors(place_runs([run]), predictor, order).sum() for run in range(total + 1)]
    best = find_best(total, parts, lambda runs: sum(alone[run] for run in runs))
    balanced = {runs for runs in list_runs(total, parts) if is_balanced(runs)}
    assert best >= balanced
    assert (best == balanced) or predictor == "zeus"


@pytest.mark.parametrize(("total", "parts"), [(8, 4), (7, 4), (9, 3)])
def test_whole_plans_of_reuse_obey_the_theorem(total, parts):
    """Reuse reads one output, so runs do not touch each other: the plan's cost is the sum, and one line reaches it."""
    best = find_best(total, parts, lambda runs: find_worst_errors(place_runs(runs), "reuse", 1).sum())
    assert best == {runs for runs in list_runs(total, parts) if is_balanced(runs)}
    for runs in best:
        plan = place_runs(runs)
        line = np.abs(find_errors(plan, "reuse") @ np.arange(len(plan))).sum()
        assert line == find_worst_errors(plan, "reuse", 1).sum()


@pytest.mark.parametrize("length", [12, 20, 30, 50])
def test_spread_and_uniform_plans_are_balanced(length):
    """The plans of the product are those of the theorem, between the full steps at both ends."""
    for nfe in range(4, length + 1):
        assert is_balanced(np.diff(Plan.spread(length, nfe).full_steps[1:]) - 1)
    for ratio in (1, 2, 3, 4):
        gaps = np.diff(Plan.uniform(length, ratio).full_steps) - 1
        skipped = gaps[gaps > 0]
        assert set(skipped[:-1]) <= {ratio}


def test_the_theorem_ends_where_a_run_reads_the_one_before():
    """`zeus` reads the previous full output after a run of two or more: its runs are not independent.

    Over outputs of second difference 1, block sums err by 25.5 in all at the runs 1, 2, 3, 2, and by 26 at 2, 2, 2, 2.
    Hence plans that are not uniform can win, and `calibrate` looks for them.
    """

    def sum_blocks(runs):
        plan = place_runs(runs)
        error = find_errors(plan, "zeus") @ (np.arange(len(plan)) ** 2 / 2)
        return np.abs(np.add.reduceat(error, plan.full_steps)).sum()

    assert find_best(8, 4, sum_blocks) == {(1, 2, 3, 2)}
    assert sum_blocks((1, 2, 3, 2)) == 25.5
    assert sum_blocks((2, 2, 2, 2)) == 26
