"""Pipelines by their name, and how to run them."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.runs import Settings

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_pipeline(name: str | Path) -> bool:
    """Whether it names a pipeline folder, or what may be one on the hub; else it is a bare model folder, or nothing."""
    return (Path(name) / "model_index.json").is_file() or bool(_HUB_ID.fullmatch(str(name)) and not Path(name).exists())


def load_pipeline(name: str | Path, dtype: torch.dtype | None = None) -> Any:
    """Loads a pipeline folder, or a pipeline of the hub by its id.

    Args:
        name: The folder or the id.
        dtype: Of its modules; float32 by default.

    Raises:
        ZeusError: No such folder and no such id, or a pipeline that does not load.
    """
    import diffusers

    try:
        return diffusers.DiffusionPipeline.from_pretrained(str(name), **say_dtype(dtype or torch.float32))
    except Exception as error:  # the hub, transformers, safetensors and diffusers each raise their own
        raise ZeusError(
            f"model: got {name}, which does not load ({str(error).strip().splitlines()[0]}); expected a pipeline "
            "folder saved by save_pretrained(), or the id of one on a hub that can be reached. Without a network give "
            "a local folder."
        ) from error


def say_dtype(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The argument of ``from_pretrained`` that this diffusers calls it by."""
    import diffusers

    is_new = tuple(int(part) for part in diffusers.__version__.split(".")[:2]) >= (0, 42)
    return {"dtype" if is_new else "torch_dtype": dtype}


def choose_settings(
    pipeline: Any, sizes: Sequence[tuple[int, int]] = ()
) -> tuple[Settings, tuple[dict[str, Any], ...]]:
    """How to run a pipeline of prompts for its capture: what to vary, and what to keep for verification.

    Args:
        pipeline: A pipeline with its text encoders.
        sizes: Heights and widths in pixels: that of the base run, the model's own by default; further ones are
            captured and verified as well, and one in the middle between them.

    Returns:
        The settings, and changes to sizes that the capture never sees.

    Raises:
        ZeusError: A pipeline whose calls must be described by hand: it takes neither prompts nor class labels.
    """
    takes = inspect.signature(pipeline.__call__).parameters
    base: dict[str, Any] = {"output_type": "latent"} if "output_type" in takes else {}
    varied: dict[str, Any] = {}
    if "class_labels" in takes:  # DiT: the batch is that of the labels, the size is fixed
        return Settings({**base, "class_labels": [1, 2]}, {"class_labels": [1, 2, 3]}), ()
    if "prompt" not in takes:
        raise ZeusError(
            f"model: got a {type(pipeline).__name__}, which takes no prompt; expected one that does. "
            "Call export_pipeline() with settings."
        )
    # Not by images per prompt: some pipelines take that argument and set it to 1.
    base["prompt"], varied["prompt"] = ["a photo of a cat"] * 2, ["a photo of a cat"] * 3
    step, unseen = 8 * getattr(pipeline, "vae_scale_factor", 8), []
    if "height" in takes:
        height, width = sizes[0] if sizes else _default_size(pipeline, step)
        base |= {"height": height, "width": width}
        if others := sizes[1:]:
            varied |= {"height": max(size[0] for size in others), "width": max(size[1] for size in others)}
            unseen = [{"height": high, "width": wide} for high, wide in others]
            unseen.append({name: (base[name] + varied[name]) // 2 // step * step for name in ("height", "width")})
        else:
            varied |= {"height": height + step, "width": width + step}
            portrait, square = {"height": height + 2 * step}, dict.fromkeys(("height", "width"), height + step)
            unseen = [portrait, square, {"width": height + step}]
    if "num_frames" in takes:
        base["num_frames"], varied["num_frames"] = 9, 13
        unseen = [{**change, "num_frames": 17} for change in unseen]
    return Settings(base, varied, {"prompt": ["a drawing of a dog"] * 2}), tuple(unseen)


def _default_size(pipeline: Any, step: int) -> tuple[int, int]:
    denoiser = getattr(pipeline, "unet", None) or pipeline.transformer
    sample = getattr(denoiser.config, "sample_size", None)
    side = sample * getattr(pipeline, "vae_scale_factor", 8) if isinstance(sample, int) else 512
    side = max(side // step, 2) * step
    return side + step, side - step  # neither is the model's own size, which some models compute in another way
