"""Pipelines by their name."""

import re
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError

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
