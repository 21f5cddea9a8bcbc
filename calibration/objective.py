"""What a calibration goes by: the mean over samples, or their worst tenth."""

import math
from collections.abc import Sequence

import numpy as np

from zeus_trt.zeus_graph.calibrated_plan import MEAN, WORST_DECILE


def average(values: Sequence[float], objective: str = MEAN) -> float:
    """Mean of PSNR in dB without that of equal pictures, which is infinite; infinity if there is no other.

    Args:
        values: PSNR of each sample.
        objective: ``mean`` of all, or ``worst-decile``: of the worst tenth, rounded up.
    """
    if objective == WORST_DECILE:
        values = sorted(values)[: -(-len(values) // 10)]
    found = [value for value in values if math.isfinite(value)]
    return sum(found) / len(found) if found else math.inf


def weigh_errors(errors: np.ndarray, objective: str = MEAN) -> np.ndarray:
    """(T,): how much each recorded trajectory counts in a search, for its squared error with a plain plan.

    The inverse of the error makes a mean of dB; for the worst tenth only the worse half counts, so that a search sees
    more than one or two trajectories.
    """
    weights = 1 / np.maximum(errors, errors.max() * 1e-6)
    return weights * (errors >= np.median(errors)) if objective == WORST_DECILE else weights
