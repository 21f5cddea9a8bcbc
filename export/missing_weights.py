"""Weights that a saved folder does not have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError

_ADAPTER = ("lora", "base_layer")  # parts of the names that adapters give to weights


def check_weights(pipeline: Any, name: str | Path) -> None:
    """Refuses a loaded pipeline with weights that its files do not have: they are left on torch's ``meta`` device.

    Args:
        pipeline: A diffusers pipeline.
        name: The folder or the id that it was loaded from.

    Raises:
        ZeusError: A module has weights without values; the message says whether adapters were saved with it.
    """
    for part, module in getattr(pipeline, "components", {}).items():
        if isinstance(module, torch.nn.Module):
            missing = [key for key, tensor in module.named_parameters() if tensor.is_meta]
            folder = Path(name) / part
            check_missing(folder, missing, _list_names(folder) if missing else ())


def check_missing(folder: Path, missing: Sequence[str], saved: Sequence[str]) -> None:
    """Refuses weights that are missing.

    Args:
        folder: Where they should be.
        missing: Names of the weights that the model has and the folder has not.
        saved: Names in the folder.

    Raises:
        ZeusError: Some are missing.
    """
    if not missing:
        return
    if any(mark in name for name in saved for mark in _ADAPTER):
        raise ZeusError(
            f"model: got {folder}, which was saved with adapters loaded, so that {sorted(missing)[0]} has another name "
            "there; expected plain weights. Load the model and its adapters again, call fuse_lora() and "
            "unload_lora_weights(), then save_pretrained()."
        )
    raise ZeusError(
        f"model: got {folder} without {sorted(missing)[0]} and {len(missing) - 1} other weights; expected all that the "
        "model has. Download or save the model again."
    )


def _list_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    names: list[str] = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names += opened.keys()
    return names
