"""How a pipeline guides, read off the calls of its denoiser."""

import math
from typing import Any

import torch

from zeus_trt.export.runs import Run, Settings
from zeus_trt.runtime.pipelines.arguments import Arguments, list_parameters

BATCHED, SEQUENTIAL, EMBEDDED, NONE = "batched", "sequential", "embedded", "none"


def find_guidance(run: Run, latents: str) -> str:
    """How a pipeline guides: one of the four words above.

    Args:
        run: Its base run.
        latents: Name of the latents.
    """
    if run.calls_per_step > 1:
        return SEQUENTIAL
    rows = run.given[latents] if latents in run.given else run.arguments.leaves[latents]
    half = len(rows) // 2
    if half and all(torch.equal(one, other) for one, other in zip(rows[:half], rows[half:], strict=False)):
        return BATCHED
    return EMBEDDED if "guidance" in run.arguments.tensors else NONE


def find_guidance_factor(pipeline: Any, settings: Settings, first: Arguments) -> float | None:
    """What the scale is multiplied with where the denoiser reads it: 1 for FLUX, 1000 for HunyuanVideo.

    Args:
        pipeline: The pipeline.
        settings: How it was run.
        first: The first call of its denoiser.

    Returns:
        A power of ten; None where ``settings.run`` chose a scale itself, or nothing is read.
    """
    given = first.tensors.get("guidance")
    parameter = list_parameters(pipeline).get("guidance_scale")
    scale = settings.base.get("guidance_scale", parameter.default if parameter else None)
    if given is None or not isinstance(scale, int | float) or scale <= 0 or float(given.flatten()[0]) <= 0:
        return None
    factor = float(given.flatten()[0]) / scale
    nearest = 10.0 ** round(math.log10(factor))
    return nearest if abs(factor - nearest) < 1e-2 * nearest else None
