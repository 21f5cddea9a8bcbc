"""Pictures of what a trajectory made."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt.errors import ZeusError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
"""Ending -> PIL's name: what PIL writes, which is less than what it reads."""

_TILE, _LARGEST_TILE, _GAP, _LABEL_WIDTH = 64, 256, 4, 190
_COLUMNS = 8
_INK, _PAPER = (30, 30, 36), (250, 250, 250)


def find_format(path: Path) -> str:
    """PIL's name of a picture file's format, by its ending.

    Raises:
        ZeusError: An ending of no picture.
    """
    if path.suffix.lower() not in FORMATS:
        raise ZeusError(
            f"output: got {path.name}; expected a picture's name such as out.png, with one of {', '.join(FORMATS)}. "
            "Change the ending."
        )
    return FORMATS[path.suffix.lower()]


def to_images(latents: torch.Tensor) -> "list[Image.Image]":
    """Turns pixels into pictures.

    Args:
        latents: (batch, channels, height, width), -1..1; values outside are clamped. Of other than 1 or 3 channels the
            first are shown; of videos (batch, frames, channels, height, width) the middle frame.
    """
    from PIL import Image

    if latents.ndim == 5:
        latents = latents[:, latents.shape[1] // 2]
    if latents.shape[1] != 1:
        latents = latents[:, :3] if latents.shape[1] >= 3 else latents[:, :1]
    pixels = ((latents.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    return [Image.fromarray((image[0] if len(image) == 1 else image.movedim(0, -1)).numpy()) for image in pixels]


def draw_grid(rows: "Mapping[str, torch.Tensor]") -> "Image.Image":
    """Draws one row of pictures of one size per entry, its key written on the left.

    Args:
        rows: Label -> pixels (batch, channels, height, width), -1..1.
    """
    from PIL import Image, ImageDraw, ImageFont

    pictures = {label: to_images(pixels) for label, pixels in rows.items()}
    margin = _LABEL_WIDTH if any(rows) else _GAP
    columns = max(len(images) for images in pictures.values())
    width, height = _fit(*next(images[0].size for images in pictures.values()))
    size = (margin + columns * (width + _GAP), _GAP + len(rows) * (height + _GAP))
    canvas = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(15)
    for row, (label, images) in enumerate(pictures.items()):
        top = _GAP + row * (height + _GAP)
        draw.multiline_text((12, top + height / 2), label, fill=_INK, font=font, anchor="lm", spacing=4)
        for column, image in enumerate(images):
            tile = image.resize((width, height), Image.Resampling.LANCZOS)
            canvas.paste(tile, (margin + column * (width + _GAP), top))
    return canvas


def draw_differences(full: torch.Tensor, images: torch.Tensor, gain: float) -> "Image.Image":
    """Draws full, images and magnified difference below each other, eight samples in a line.

    Args:
        full: Pixels of the full run, (batch, [frames,] channels, height, width), -1..1.
        images: Pixels of the same samples.
        gain: What the difference is multiplied with; none is black, 1 / gain of the range is white.
    """
    from PIL import Image

    difference = (images.clamp(-1, 1) - full.clamp(-1, 1)).abs() * gain - 1
    lines = [to_images(pixels) for pixels in (full, images, difference)]
    width, height = _fit(*lines[0][0].size)
    columns = min(len(full), _COLUMNS)
    blocks = -(-len(full) // _COLUMNS)
    block = 3 * (height + _GAP) + _GAP
    canvas = Image.new("RGB", (_GAP + columns * (width + _GAP), blocks * block), _PAPER)
    for line, tiles in enumerate(lines):
        for index, image in enumerate(tiles):
            place = (
                _GAP + index % _COLUMNS * (width + _GAP),
                _GAP + index // _COLUMNS * block + line * (height + _GAP),
            )
            canvas.paste(image.resize((width, height), Image.Resampling.NEAREST), place)
    return canvas


def _fit(width: int, height: int) -> tuple[int, int]:
    """Size of a tile: small pictures enlarged, large ones made smaller, their shape kept."""
    scale = min(max(_TILE / min(width, height), 1), _LARGEST_TILE / max(width, height))
    return max(round(width * scale), 1), max(round(height * scale), 1)
