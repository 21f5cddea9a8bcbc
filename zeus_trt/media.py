"""Files of pictures and videos."""

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


def write_media(images: torch.Tensor, path: Path) -> None:
    """Writes samples side by side: one picture, or one video.

    Args:
        images: (batch, [frames,] channels, height, width), -1..1. Small pictures are enlarged.
        path: Where to.

    Raises:
        ZeusError: A video into a picture's file or a picture into a video's, or no library that writes mp4.
    """
    kind = check_format(path)
    is_video = images.ndim == 5
    if kind == "MP4" and not is_video:
        raise ZeusError(f"output: got {path.name} for pictures; expected a picture's name such as out.png. Change it.")
    if is_video and path.suffix.lower() not in VIDEOS:
        raise ZeusError(f"output: got {path.name} for a video; expected {' or '.join(VIDEOS)}. Change the ending.")
    with write_atomically(path) as temporary:
        if not is_video:
            _join(images).save(temporary, format=kind)
            return
        frames = [_join(frame) for frame in images.unbind(1)]
        if kind == "MP4":
            _write_mp4(frames, temporary)
        else:
            frames[0].save(
                temporary, format=kind, save_all=True, append_images=frames[1:], duration=1000 // FPS, loop=0
            )


def _join(images: torch.Tensor) -> "Image.Image":
    if images.shape[-1] <= _SMALL:
        return draw_grid({"": images})
    return to_images(torch.cat(list(images), dim=-1)[None])[0]


def _write_mp4(frames: "list[Image.Image]", path: Path) -> None:
    from diffusers.utils import export_to_video

    try:
        export_to_video(frames, str(path), fps=FPS)
    except ImportError as error:
        raise ZeusError(
            "output: got mp4 without a library that writes it; expected imageio. Install it, or write a .gif: "
            "pip install imageio imageio-ffmpeg."
        ) from error
