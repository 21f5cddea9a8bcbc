"""Pictures of what a trajectory made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from PIL import Image

_TILE, _GAP, _LABEL_WIDTH = 64, 4, 190
_INK, _PAPER = (30, 30, 36), (250, 250, 250)


def to_images(latents: torch.Tensor) -> "list[Image.Image]":
    """Turns pixels (batch, 1 or 3, height, width), -1..1, into pictures; values outside are clamped."""
    from PIL import Image

    pixels = ((latents.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    return [Image.fromarray((image[0] if len(image) == 1 else image.movedim(0, -1)).numpy()) for image in pixels]


def draw_grid(rows: "Mapping[str, torch.Tensor]") -> "Image.Image":
    """Draws one row of pictures per entry, its key written on the left.

    Args:
        rows: Label -> pixels (batch, channels, height, width), -1..1.
    """
    from PIL import Image, ImageDraw, ImageFont

    pictures = {label: to_images(pixels) for label, pixels in rows.items()}
    margin = _LABEL_WIDTH if any(rows) else _GAP
    columns = max(len(images) for images in pictures.values())
    size = (margin + columns * (_TILE + _GAP), _GAP + len(rows) * (_TILE + _GAP))
    canvas = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(15)
    for row, (label, images) in enumerate(pictures.items()):
        top = _GAP + row * (_TILE + _GAP)
        draw.multiline_text((12, top + _TILE / 2), label, fill=_INK, font=font, anchor="lm", spacing=4)
        for column, image in enumerate(images):
            tile = image.resize((_TILE, _TILE), Image.Resampling.LANCZOS)
            canvas.paste(tile, (margin + column * (_TILE + _GAP), top))
    return canvas
