"""Files of pictures and videos."""

import importlib.util
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.files import write_atomically
from zeus_trt.pictures import draw_grid, find_format, to_images

if TYPE_CHECKING:
    from PIL import Image

VIDEOS = (".gif", ".mp4")
FPS = 8
_SMALL = 64


def check_format(path: Path) -> str:
    """The format of a file, by its ending: one of PIL's, or ``MP4``.

    Raises:
        ZeusError: An ending of neither pictures nor videos.
    """
    return "MP4" if path.suffix.lower() == ".mp4" else find_format(path)


def check_kind(path: Path, is_video: bool) -> str:
    """The format of a file that takes a video, or a picture.

    Raises:
        ZeusError: A video into a picture's file or a picture into a video's, or no library that writes mp4.
    """
    kind = check_format(path)
    if kind == "MP4" and not is_video:
        raise ZeusError(f"output: got {path.name} for pictures; expected a picture's name such as out.png. Change it.")
    if is_video and path.suffix.lower() not in VIDEOS:
        raise ZeusError(f"output: got {path.name} for a video; expected {' or '.join(VIDEOS)}. Change the ending.")
    if kind == "MP4" and not all(importlib.util.find_spec(name) for name in ("imageio", "imageio_ffmpeg")):
        raise ZeusError(
            "output: got mp4 without a library that writes it; expected imageio. Install it, or write a .gif: "
            "pip install imageio imageio-ffmpeg."
        )
    return kind


def write_media(images: torch.Tensor, path: Path) -> None:
    """Writes samples side by side: one picture, or one video.

    Args:
        images: (batch, [frames,] channels, height, width), -1..1. Small pictures are enlarged.
        path: Where to.

    Raises:
        ZeusError: As ``check_kind`` and ``write_atomically``, or pictures that the format has no room for.
    """
    is_video = images.ndim == 5
    kind = check_kind(path, is_video)
    frames = [_join(frame) for frame in images.unbind(1)] if is_video else [_join(images)]
    with write_atomically(path) as temporary:
        if kind == "MP4":
            _write_mp4(frames, temporary)
        else:
            _write_pictures(frames, temporary, kind)


def _join(images: torch.Tensor) -> "Image.Image":
    if max(images.shape[-2:]) <= _SMALL:
        return draw_grid({"": images})
    return to_images(torch.cat(list(images), dim=-1)[None])[0]


def _write_pictures(frames: "list[Image.Image]", path: Path, kind: str) -> None:
    more = {"save_all": True, "append_images": frames[1:], "duration": 1000 // FPS, "loop": 0}
    try:
        frames[0].save(path, format=kind, **(more if len(frames) > 1 else {}))
    except (OSError, ValueError, OverflowError, struct.error) as error:  # of an encoder; one of the disk has a number
        if getattr(error, "errno", None):
            raise
        width, height = frames[0].size
        raise ZeusError(
            f"output: got {width}x{height} pixels for {kind}, which has no room for them ({error}); expected fewer. "
            "Write a .png, or fewer images."
        ) from error


def _write_mp4(frames: "list[Image.Image]", path: Path) -> None:
    from diffusers.utils import export_to_video

    export_to_video(frames, str(path), fps=FPS)
