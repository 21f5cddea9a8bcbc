"""LPIPS and FID: measured where their weights are on this machine, never downloaded."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch

_LEAST_FID_IMAGES = 500  # below, the covariance of 2048 features says more about the number of images than about them
_LPIPS = {"lpips": ("alex", "alexnet-owt-7be5be79.pth"), "lpips=squeeze": ("squeeze", "squeezenet1_1-b8a52dc0.pth")}
_FID = ("torch_fidelity", "weights-inception-2015-12-05-6726825d.pth")


def explain_absence(metric: str, num_images: int | None = None) -> str | None:
    """Why LPIPS or FID cannot be measured here; None if it can, and for every other metric.

    Args:
        metric: Its name.
        num_images: How many there are, which may be too few for FID.
    """
    if metric not in (*_LPIPS, "fid"):
        return None
    package, weights = ("torchvision", _LPIPS[metric][1]) if metric in _LPIPS else _FID
    if importlib.util.find_spec(package) is None:
        return f"{metric}: not available: needs the package {package.replace('_', '-')}, which is not installed"
    if not (_weights_folder() / weights).is_file():
        return f"{metric}: not available: needs the weights {weights} in {_weights_folder()}"
    if metric == "fid" and num_images is not None and num_images < _LEAST_FID_IMAGES:
        return f"{metric}: not measured: needs {_LEAST_FID_IMAGES} images or more, and there are {num_images}"
    return None


def measure_lpips(images: torch.Tensor, reference: torch.Tensor, metric: str = "lpips") -> float | None:
    """LPIPS of images (batch, 1 or 3, height, width) in -1..1, mean; None where it is not available.

    Args:
        images: The images.
        reference: What they are compared with, of the same shape.
        metric: ``lpips``, with AlexNet as most papers have it, or ``lpips=squeeze``, with SqueezeNet.
    """
    if explain_absence(metric):
        return None
    with torch.no_grad():
        return float(_load_lpips(_LPIPS[metric][0])(_to_rgb(images).clamp(-1, 1), _to_rgb(reference).clamp(-1, 1)))


def measure_fid(images: torch.Tensor, reference: torch.Tensor) -> float | None:
    """FID between two batches of images in -1..1; None where it is not available, and for fewer than 500 images."""
    if explain_absence("fid", len(images)):
        return None
    fid = _load_fid()
    fid.reset()
    fid.update((_to_rgb(reference).clamp(-1, 1) + 1) / 2, real=True)
    fid.update((_to_rgb(images).clamp(-1, 1) + 1) / 2, real=False)
    return float(fid.compute())


@cache
def _load_lpips(network: str) -> Any:
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    return LearnedPerceptualImagePatchSimilarity(net_type=network)


@cache
def _load_fid() -> Any:
    from torchmetrics.image.fid import FrechetInceptionDistance

    return FrechetInceptionDistance(normalize=True, feature_extractor_weights_path=str(_weights_folder() / _FID[1]))


def _weights_folder() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def _to_rgb(images: torch.Tensor) -> torch.Tensor:
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images[:, :3]
