"""Tiny random pipelines of many families, built from diffusers' own classes; nothing is downloaded."""

# ruff: noqa: C408  (a config reads better as keywords)

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tiny_images as image
import tiny_today as today
import tiny_unets as unet
import tiny_videos as video
import torch

from zeus_trt.export.runs import Settings


@dataclass(frozen=True)
class Family:
    """A pipeline that can be built, and how to run it.

    Args:
        build: Makes the pipeline; weights depend on the global seed only.
        run: Runs it with the settings below.
        base, varied: See ``Settings``.
        unseen: Two settings inside the range of ``base`` and ``varied`` that export never sees.
        multiple_of: What height and width of the latents must be a multiple of, as tracing finds it.
        relations: What else it finds of the sizes.
    """

    build: Callable[[], Any]
    run: Callable[..., Any]
    base: Mapping[str, Any]
    varied: Mapping[str, Any]
    unseen: tuple[Mapping[str, Any], ...]
    multiple_of: int = 1
    relations: frozenset[str] = frozenset()

    def make(self) -> Any:
        torch.manual_seed(0)
        pipeline = self.build()
        for component in pipeline.components.values():
            if isinstance(component, torch.nn.Module):
                component.eval()
                _spread(component)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @property
    def settings(self) -> Settings:
        return Settings(self.base, self.varied, content={"seed": 1}, run=self.run)


def _spread(module: torch.nn.Module) -> None:
    """Replaces weights that diffusers starts at zero, which would hide what they multiply."""
    for parameter in module.parameters():
        if parameter.ndim >= 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)


IMAGE = dict(
    base=dict(batch=2, height=64, width=96, prompt=7),
    varied=dict(batch=3, height=128, width=160, prompt=11),
    unseen=(dict(height=96, width=128, prompt=9), dict(height=112, width=144, prompt=8)),
)
VIDEO = dict(
    base=dict(batch=2, height=64, width=96, frames=9, prompt=7),
    varied=dict(batch=3, height=128, width=160, frames=17, prompt=11),
    unseen=(dict(height=96, width=128, frames=13, prompt=9), dict(height=112, width=144, frames=13, prompt=8)),
)

FAMILIES = {
    "sd15": Family(unet.build_sd, unet.run_sd, **IMAGE, multiple_of=2),
    "sd21-v": Family(unet.build_sd2, unet.run_sd, **IMAGE, multiple_of=2),
    "sdxl": Family(unet.build_sdxl, unet.run_sdxl, **IMAGE, multiple_of=2),
    "sdxl-refiner": Family(unet.build_refiner, unet.run_refiner, **IMAGE, multiple_of=2),
    "inpaint": Family(unet.build_inpaint, unet.run_inpaint, **IMAGE),
    "sd3": Family(image.build_sd3, unet.run_sdxl, **IMAGE),
    "flux": Family(image.build_flux, image.run_flux, **IMAGE),
    "flux-no-guidance": Family(lambda: image.build_flux(False), image.run_flux_with_true_cfg, **IMAGE),
    "flux2": Family(image.build_flux2, image.run_flux2, **IMAGE),
    "pixart": Family(image.build_pixart, image.run_masked, **IMAGE, relations=frozenset({"height // 2 != 8"})),
    "sana": Family(
        image.build_sana, image.run_masked, base=dict(batch=2, height=128, width=192, prompt=7),
        varied=dict(batch=3, height=256, width=320, prompt=11),
        unseen=(dict(height=192, width=256, prompt=9), dict(height=224, width=288, prompt=8)),
    ),
    "auraflow": Family(image.build_auraflow, image.run_auraflow, **IMAGE, multiple_of=2),
    "cogview4": Family(image.build_cogview4, unet.run_sd, **IMAGE, multiple_of=2),
    "dit": Family(image.build_dit, image.run_dit, base=dict(batch=2), varied=dict(batch=3), unseen=({}, {"seed": 3})),
    "wan": Family(video.build_wan, video.run_video, **VIDEO),
    "wan22-ti2v": Family(lambda: video.build_wan(expand_timesteps=True), video.run_video, **VIDEO, multiple_of=2),
    "cogvideox": Family(video.build_cogvideox, video.run_video, **VIDEO, multiple_of=2),
    "ltx": Family(
        video.build_ltx, video.run_ltx, base=dict(batch=2, height=64, width=96, frames=9, prompt=7),
        varied=dict(batch=3, height=128, width=192, frames=17, prompt=11),
        unseen=(dict(height=96, width=128, frames=17, prompt=9), dict(height=96, width=160, frames=17, prompt=8)),
    ),
    "hunyuan": Family(video.build_hunyuan, video.run_hunyuan, **VIDEO),
    "qwen-image": Family(
        today.build_qwen, today.run_qwen, **IMAGE,
        relations=frozenset({"prompt + max(max(0, height // 2), width // 2) <= 4096"}),
    ),
    "hunyuan-video-1.5": Family(today.build_hunyuan15, today.run_hunyuan15, **VIDEO),
    "ltx2": Family(
        today.build_ltx2, today.run_ltx2, base=dict(batch=2, height=64, width=96, frames=9, prompt=7),
        varied=dict(batch=3, height=128, width=160, frames=17, prompt=11),
        unseen=(dict(height=96, width=128, frames=13, prompt=9), dict(height=96, width=160, frames=13, prompt=8)),
    ),
    "mochi": Family(
        today.build_mochi, today.run_mochi, **VIDEO, multiple_of=2,
        relations=frozenset({"1 < (height // 2) * (width // 2)"}),
    ),
    "chroma": Family(
        today.build_chroma, today.run_chroma, **IMAGE, relations=frozenset({"tokens_2 == prompt + tokens"}),
    ),
    "lumina2": Family(
        image.build_lumina, image.run_lumina, **IMAGE, multiple_of=2,
        relations=frozenset({
            "4 * (height // (height // 2)) * (width // (width // 2)) < "
            "4 * (height // 2) * (height // (height // 2)) * (width // 2) * (width // (width // 2))",
            "4 * (height // (height // 2)) * (width // 2) * (width // (width // 2)) < "
            "4 * (height // 2) * (height // (height // 2)) * (width // 2) * (width // (width // 2))",
        }),
    ),
    "z-image": Family(
        today.build_z_image, today.run_z_image, **IMAGE, multiple_of=2,
        relations=frozenset({
            "(height // 2) * (width // 2) != 1",
            "16 < 4 * (height // 2) * (height // (height // 2)) * (width // 2) * (width // (width // 2))",
        }),
    ),
}  # fmt: skip
