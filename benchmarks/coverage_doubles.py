"""Doubles of what diffusers calls of packages that may be absent: torchvision and the safety checker of Cosmos."""

import importlib
import importlib.util
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Passing:
    """A double of a safety checker that lets everything pass; the real one is not a part of diffusers."""

    def to(self, *where: Any) -> "Passing":
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, video: Any) -> Any:
        return video


def stand_for_torchvision() -> None:
    """Gives modules of diffusers the functions of torchvision that they would have imported, where it is absent."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for name in ("models.transformers.transformer_cosmos", "models.controlnets.controlnet_cosmos"):
        _import(name).transforms = _TRANSFORMS
    _import("pipelines.cosmos.pipeline_cosmos2_5_predict").torchvision = types.SimpleNamespace(transforms=_TRANSFORMS)
    processor = _import("pipelines.omnigen.processor_omnigen")
    processor.transforms = _TRANSFORMS
    _import("pipelines.omnigen.pipeline_omnigen").OmniGenMultiModalProcessor = processor.OmniGenMultiModalProcessor


def _import(name: str) -> Any:
    return importlib.import_module(f"diffusers.{name}")


def _resize(tensor: torch.Tensor, size: list[int], interpolation: str) -> torch.Tensor:
    return torch.nn.functional.interpolate(tensor, size, mode=interpolation)


def _to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def _refuse(*given: Any, **named: Any) -> Callable[[Any], Any]:
    """A transform that is made, but not used: prompts have no pictures."""
    return NotImplemented


_TRANSFORMS = types.SimpleNamespace(
    functional=types.SimpleNamespace(resize=_resize, to_tensor=_to_tensor),
    InterpolationMode=types.SimpleNamespace(NEAREST="nearest"),
    **dict.fromkeys(("Compose", "Lambda", "ToTensor", "Normalize"), _refuse),
)
