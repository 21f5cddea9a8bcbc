"""Making the arguments that a pipeline asks for: pictures, videos, sound, embeddings and words."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PROMPT, OTHER_PROMPT = "a photo of a cat", "a drawing of a dog"
ROWS, ONE, TENSOR = "rows", "one", "tensor"
FORMS = (ROWS, ONE, TENSOR)
"""How pictures are passed: a PIL image per row, one PIL image for all rows, a tensor with a picture per row."""
PICTURE, MASK, VIDEO, MASK_VIDEO, SOUND, EMBEDDING, WORDS = (
    "picture", "mask", "video", "mask video", "sound", "embedding", "words",
)  # fmt: skip
_ENDINGS = {
    MASK_VIDEO: r"mask_video|video_mask",
    MASK: r"mask|mask_image|control_mask",
    VIDEO: r"video|conditioning_frames|frames|images_sequence",
    PICTURE: r"image|images|hint",
    SOUND: r"audio",
    EMBEDDING: r"image_embeds|image_embeddings",
    WORDS: r"prompt(_\d)?|category|instruction",
}
_WIDTHS = (
    "encoder_hid_dim", "clip_image_in_channels", "clip_embeddings_dim", "image_dim", "cross_attention_dim",
    "projection_dim", "hidden_size",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """What made arguments follow.

    Args:
        rows: Images or videos of a run.
        height, width: In pixels.
        frames: Of a video.
        seed: Of their content.
    """

    rows: int
    height: int
    width: int
    frames: int
    seed: int = 0


def find_kind(parameter: inspect.Parameter, has_frames: bool) -> str | None:
    """What can be made for a parameter of a pipeline's ``__call__``; None if nothing can.

    Args:
        parameter: The parameter: its name says what it takes, or its type where that is ``str``.
        has_frames: Whether the pipeline makes videos; its ``mask`` is one too.
    """
    name = parameter.name
    if name.startswith(("ip_adapter", "negative_ip", "gligen", "num_", "original_size", "clean_")):
        return None
    if name.endswith("attention_mask"):  # of a text's tokens, and passed beside its embedding
        return None
    kind = next((kind for kind, ending in _ENDINGS.items() if re.fullmatch(rf"(.*_)?({ending})", name)), None)
    if kind == MASK and has_frames and "image" not in name:
        return MASK_VIDEO
    return kind or (WORDS if parameter.annotation in (str, "str") else None)


def list_widths(pipeline: Any) -> list[int]:
    """Widths that an image's embedding may have, as the configs of the components say, the likeliest first."""
    configs = [getattr(part, "config", None) for part in pipeline.components.values()]
    found = [_read(config, name) for name in _WIDTHS for config in configs]
    return list(dict.fromkeys(width for width in found if isinstance(width, int)))


def make(kind: str, name: str, size: Size, form: str, shape: Sequence[int]) -> Any:
    """A value of a kind.

    Args:
        kind: What ``find_kind`` said.
        name: The parameter, which gives each its content.
        size: What it follows.
        form: One of ``FORMS``, of pictures and videos.
        shape: Of one row of an embedding.
    """
    random = np.random.default_rng([size.seed, *name.encode()])
    if kind == WORDS:
        return [OTHER_PROMPT if size.seed else PROMPT] * size.rows
    if kind == EMBEDDING:
        return torch.from_numpy(random.standard_normal((size.rows, *shape))).float()
    if kind == SOUND:
        return torch.from_numpy(random.standard_normal((size.rows, 2, 44100))).float()
    if kind in (VIDEO, MASK_VIDEO):
        videos = [
            [_draw(kind == MASK_VIDEO, size, random) for _ in range(size.frames)]
            for _ in range(1 if form == ONE else size.rows)
        ]
        if form == TENSOR:
            return torch.stack([torch.stack([_to_tensor(frame) for frame in video]) for video in videos])
        return videos[0] if form == ONE else videos
    pictures = [_draw(kind == MASK, size, random) for _ in range(1 if form == ONE else size.rows)]
    return arrange(pictures, TENSOR if name == "hint" else form)


def arrange(pictures: Sequence[Any], form: str) -> Any:
    """PIL images in a form."""
    if form == TENSOR:
        return torch.stack([_to_tensor(picture) for picture in pictures])
    return pictures[0] if form == ONE else list(pictures)


def _draw(is_mask: bool, size: Size, random: np.random.Generator) -> Any:
    """A PIL image: noise, or a mask whose left half is empty."""
    from PIL import Image

    if is_mask:
        values = np.zeros((size.height, size.width), np.uint8)
        values[:, size.width // 2 :] = 255
        return Image.fromarray(values, "L")
    return Image.fromarray(random.integers(0, 256, (size.height, size.width, 3), np.uint8), "RGB")


def _to_tensor(picture: Any) -> torch.Tensor:
    """Float32 (channels, height, width) in 0..1."""
    values = torch.from_numpy(np.asarray(picture).copy()).float() / 255
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1)


def _read(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
