"""Least-squares weights for a plan, as L2P fits them: each step on its own, on recorded outputs."""

from dataclasses import replace

import numpy as np

from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.row_table import Row

_RIDGE = 1e-6  # of the mean square of what is read: outputs are nearly collinear


def fit_least_squares(stats: TrajectoryStats, plan: Plan, order: int = 4) -> Plan:
    """The plan with the table of L2P (CVPR 2026): psi_i by sum_k w_(i,k) psi_k, w the least squares on full runs.

    The outputs that a run with skipped steps has moved to are not looked at: the calibrated plans of ``search`` correct
    what this leaves.

    Args:
        stats: Recorded trajectories of the solver that the plan is for.
        plan: Which steps are full.
        order: Past full outputs that a step reads, at most; the authors read all that are kept.
    """
    gram = stats.products.mean(axis=0)
    table: dict[int, Row] = {}
    for step in range(len(plan)):
        if not plan.is_full(step):
            past = [full for full in plan.full_steps if full < step][-order:]
            known = gram[np.ix_(past, past)]
            penalty = _RIDGE * np.trace(known) / len(past) * np.eye(len(past))
            weights = np.linalg.solve(known + penalty, gram[past, step])
            table[step] = dict(zip(past, weights.tolist(), strict=True))
    return replace(plan, predictor=Predictor.from_table(table) if table else plan.predictor)
