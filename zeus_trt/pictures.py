"""Pictures of what a trajectory made."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

_TILE, _LARGEST_TILE, _GAP, _LABEL_LETTERS = 64, 256, 4, 24
_COLOURS = "inferno"
_INK, _PAPER = (30, 30, 36), (250, 250, 250)


def find_format(path: Path) -> str:
    """PIL's name of a picture file's format, by its ending.

    Raises:
        ZeusError: An ending of no picture.
    """
    if path.suffix.lower() not in FORMATS:
        raise ZeusError(
            f"output: got {path.name or path}; expected a picture's name such as out.png, with one of "
            f"{', '.join(FORMATS)}. Change the ending."
        )
    return FORMATS[path.suffix.lower()]


def encode_image(image: "Image.Image", ending: str = ".png") -> bytes:
    """The file of a picture, of an ending of ``FORMATS``."""
    file = io.BytesIO()
    image.save(file, format=find_format(Path(f"picture{ending}")))
    return file.getvalue()


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


def draw_grid(rows: "Mapping[str, torch.Tensor]", notes: Sequence[str] = ()) -> "Image.Image":
    """Draws one row of pictures of one size per entry, its key written on the left.

    Args:
        rows: Label -> pixels (batch, channels, height, width), -1..1.
        notes: Lines below the pictures.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(15)
    pictures = {label: to_images(pixels) for label, pixels in rows.items()}
    texts = {label: _wrap(label, _LABEL_LETTERS) for label in rows}
    margin = max(_measure(text, font)[0] for text in texts.values()) + 24 if any(rows) else _GAP
    columns = max(len(images) for images in pictures.values())
    width, height = _fit(*next(images[0].size for images in pictures.values()))
    line = max(height, *(_measure(text, font)[1] + 8 for text in texts.values())) + _GAP
    right = margin + columns * (width + _GAP)
    below = "\n".join(_wrap(note, max(right // 8, 20)) for note in notes)
    depth = _measure(below, font)[1] + 20 if notes else 0
    canvas = Image.new("RGB", (right, _GAP + len(rows) * line + depth), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for row, (label, images) in enumerate(pictures.items()):
        top = _GAP + row * line
        draw.multiline_text((12, top + line / 2), texts[label], fill=_INK, font=font, anchor="lm", spacing=4)
        for column, image in enumerate(images):
            tile = image.resize((width, height), Image.Resampling.LANCZOS)
            canvas.paste(tile, (margin + column * (width + _GAP), top))
    draw.multiline_text((12, _GAP + len(rows) * line + 6), below, fill=_INK, font=font, spacing=4)
    return canvas


def _wrap(text: str, letters: int) -> str:
    return "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, letters))


def _measure(text: str, font: Any) -> tuple[int, int]:
    """Width and height of text in pixels."""
    from PIL import Image, ImageDraw

    box = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox((0, 0), text, font=font, spacing=4)
    return ceil(box[2]), ceil(box[3])


def measure_levels(full: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """How far pixels are from those of the full run: (batch, height, width), in levels of 255.

    The channel that differs most counts; of videos the middle frame is taken, as ``to_images`` does.

    Args:
        full: (batch, [frames,] channels, height, width), -1..1; values outside are clamped.
        images: Of the same shape.
    """
    levels = (images.clamp(-1, 1) - full.clamp(-1, 1)).abs().amax(-3) * 127.5
    return levels[:, levels.shape[1] // 2] if levels.ndim == 4 else levels


def draw_levels(levels: torch.Tensor, top: float) -> "list[Image.Image]":
    """Draws levels (batch, height, width) in the colours of ``list_colours``; ``top`` and above have the last one."""
    from matplotlib import colormaps
    from PIL import Image

    return [Image.fromarray(picture) for picture in colormaps[_COLOURS]((levels / top).numpy(), bytes=True)[..., :3]]


def list_colours() -> list[str]:
    """Nine colours of a difference from zero to the top, as ``#rrggbb``."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[_COLOURS](k / 8)) for k in range(9)]


def shrink(picture: "Image.Image") -> "Image.Image":
    """The picture, made smaller where it is larger than a large tile."""
    smaller = picture.copy()
    smaller.thumbnail((_LARGEST_TILE, _LARGEST_TILE))
    return smaller


def _fit(width: int, height: int) -> tuple[int, int]:
    """Size of a tile: small pictures enlarged, large ones made smaller, their shape kept."""
    scale = min(max(_TILE / min(width, height), 1), _LARGEST_TILE / max(width, height))
    return max(round(width * scale), 1), max(round(height * scale), 1)
