"""The noise levels of a schedule."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def read_sigmas(prepared: Any, timesteps: Sequence[float], begin: int = 0) -> tuple[float, ...] | None:
    """The scheduler's sigmas if they stand one to an evaluation, else those of its alphas, else None."""
    total = len(prepared.timesteps)
    own = getattr(prepared, "sigmas", None)
    if own is not None and total <= len(own) <= total + 1:
        sigmas = [float(sigma) for sigma in own[begin:total]]
        repeats = [i for i in range(1, len(sigmas)) if sigmas[i] == sigmas[i - 1]]
        if all(timesteps[i] == timesteps[i - 1] for i in repeats) and np.isfinite(sigmas).all():
            return tuple(sigmas)
    alphas = getattr(prepared, "alphas_cumprod", None)
    if alphas is None or min(timesteps) < 0 or max(timesteps) > len(alphas) - 1:
        return None
    alphas = np.asarray(alphas, dtype=np.float64)
    with np.errstate(all="ignore"):
        log_sigmas = 0.5 * np.log((1 - alphas) / alphas)
        derived = np.exp(np.interp(timesteps, np.arange(len(alphas)), log_sigmas))
    return tuple(derived.tolist()) if np.isfinite(derived).all() else None
