"""How a pipeline turns the scheduler's timesteps into what its denoiser is told."""

from typing import Any

import torch

from zeus_trt.export.recorder import record_calls
from zeus_trt.export.runs import Settings
from zeus_trt.runtime.arguments import flatten

_TOLERANCE = 1e-5


def find_timestep_scale(pipeline: Any, component: str, name: str, settings: Settings) -> float | None:
    """What the scheduler's timesteps are multiplied with: 1 for most families, 0.001 for FLUX.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        component: Its denoiser's name.
        name: Name of the timestep among the flat arguments.
        settings: How to run it.

    Returns:
        The factor; None where the rows of a call differ, or it is no multiple (Lumina's ``1 - t / 1000``).
    """
    with record_calls(pipeline, component) as calls:
        try:
            settings.run(pipeline, **settings.base)
        finally:  # the recorder leaves the block when it has seen enough
            scheduler = pipeline.scheduler
            timesteps = getattr(scheduler, "timesteps", None)
    begin = getattr(scheduler, "begin_index", None) or 0
    told = [torch.as_tensor(flatten(call.arguments).leaves[name]).float() for call in calls]
    if timesteps is None or calls[-1].step + begin >= len(timesteps) or told[0].ndim > 1:
        return None
    times = [float(timesteps[call.step + begin]) for call in calls]
    if times[0] == 0 or any((rows != rows.flatten()[0]).any() for rows in told):
        return None
    scale = float(told[0].flatten()[0]) / times[0]
    allowed = _TOLERANCE * abs(scale * times[0])
    same = all(abs(float(rows.flatten()[0]) - scale * time) <= allowed for rows, time in zip(told, times, strict=True))
    return float(f"{scale:.6g}") if same else None
