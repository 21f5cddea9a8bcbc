"""How a pipeline turns the solver's timesteps into those that its denoiser reads."""

from collections.abc import Sequence

import torch

_TOLERANCE = 1e-5
_DIGITS = {torch.float16: 2, torch.bfloat16: 2}  # of a factor that is read off halves


def find_timestep_scale(times: Sequence[float | None], given: Sequence[torch.Tensor]) -> float | None:
    """What the solver's timesteps are multiplied with: 1 for most families, 0.001 for FLUX.

    Args:
        times: The solver's timestep at each call of the denoiser.
        given: The timestep that the denoiser received at each: () or (batch,).

    Returns:
        The factor; None where a timestep is not known, the rows of a call differ, or it is no multiple (Lumina's
        ``1 - t / 1000``).
    """
    if not times[0] or any(rows.ndim > 1 or (rows != rows.flatten()[0]).any() for rows in given):
        return None
    values = [float(rows.flatten()[0]) for rows in given]
    scale = float(f"{values[0] / times[0]:.{_DIGITS.get(given[0].dtype, 6)}g}")
    rounding = torch.finfo(given[0].dtype).eps if given[0].is_floating_point() else 0.0
    allowed = max(_TOLERANCE, rounding) * abs(scale * times[0])
    fits = all(t is not None and abs(value - scale * t) <= allowed for value, t in zip(values, times, strict=True))
    return scale if fits else None
