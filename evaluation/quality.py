"""How far samples are from reference samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.perceptual import measure_fid, measure_lpips
from zeus_trt.zeus_graph.open_list import find_outside

Metric = str | Callable[[torch.Tensor, torch.Tensor], float]
"""A name of ``METRICS``, the entry point of another package, or a function of images and their reference, both
(batch, channels, height, width) in -1..1."""

METRICS: tuple[Metric, ...] = ("psnr", "ssim", "latent-error", "temporal", "lpips", "fid")
"""Names of the metrics; temporal is measured on videos only, lpips and fid where their weights are on the machine."""

_OTHERS = ("lpips=squeeze",)  # which are measured where they are asked for by name

_SSIM_WINDOW = 11


@dataclass(frozen=True)
class Quality:
    """Distances of a batch to its reference; None where a metric was not asked for or cannot be measured.

    Args:
        latent_error: ``|latents - reference| / |reference|``, Euclidean norms over the batch.
        psnr_db: Mean over the images (the frames of videos) that are not equal; None where all are.
        ssim: Mean over images or frames; None below 11 pixels.
        temporal_psnr_db: PSNR of the differences of neighbouring frames; None for images, and where all are equal.
        lpips: Mean LPIPS, of AlexNet unless ``lpips=squeeze`` was asked for.
        fid: FID between the two batches.
        others: Metrics from elsewhere, by name.
    """

    latent_error: float | None = None
    psnr_db: float | None = None
    ssim: float | None = None
    temporal_psnr_db: float | None = None
    lpips: float | None = None
    fid: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)


UNMEASURED = Quality()


def name_metric(metric: Metric) -> str:
    """The name of a metric."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def check_metrics(metrics: tuple[Metric, ...]) -> None:
    """Raises ZeusError for an unknown metric, and for both kinds of LPIPS."""
    if unknown := [one for one in metrics if one not in (*METRICS, *_OTHERS) and not _find_other(one)]:
        known = ", ".join(map(name_metric, (*METRICS, *_OTHERS)))
        raise ZeusError(f"metric: got {unknown[0]!r}; expected some of {known}. Choose among these.")
    if {"lpips", "lpips=squeeze"} <= set(metrics):
        raise ZeusError("metric: got lpips and lpips=squeeze; expected one network for LPIPS. Leave one out.")


def measure_quality(
    latents: torch.Tensor,
    reference_latents: torch.Tensor,
    images: torch.Tensor,
    reference: torch.Tensor,
    metrics: tuple[Metric, ...] = METRICS,
) -> Quality:
    """Measures a batch against its reference.

    Args:
        latents: (batch, ...).
        reference_latents: Of the same shape.
        images: (batch, channels, height, width) or (batch, frames, channels, height, width), in -1..1.
        reference: Of the same shape.
        metrics: Which.

    Raises:
        ZeusError: The images have another size than their reference, or an unknown metric.
    """
    check_metrics(metrics)
    _check_sizes(images, reference)
    frames, reference_frames = _flatten_frames(images), _flatten_frames(reference)
    measures = {
        "latent-error": ("latent_error", lambda: measure_latent_error(latents, reference_latents)),
        "psnr": ("psnr_db", lambda: _finite(measure_psnr(frames, reference_frames))),
        "ssim": ("ssim", lambda: None if min(frames.shape[-2:]) < _SSIM_WINDOW
                 else measure_ssim(frames, reference_frames)),
        "temporal": ("temporal_psnr_db", lambda: None if images.ndim < 5
                     else _finite(measure_temporal_psnr(images, reference))),
        "lpips": ("lpips", lambda: measure_lpips(frames, reference_frames)),
        "lpips=squeeze": ("lpips", lambda: measure_lpips(frames, reference_frames, "lpips=squeeze")),
        "fid": ("fid", lambda: measure_fid(frames, reference_frames)),
    }  # fmt: skip
    known = [measures[metric] for metric in metrics if isinstance(metric, str) and metric in measures]
    others = {name_metric(one): make for one in metrics if (make := _find_other(one))}
    return Quality(
        **{name: measure() for name, measure in known},
        others={name: float(make(frames, reference_frames)) for name, make in others.items()},
    )


def _find_other(metric: Metric) -> Callable[[torch.Tensor, torch.Tensor], float] | None:
    if callable(metric):
        return metric
    return None if metric in (*METRICS, *_OTHERS) else find_outside("metric", metric)


def measure_psnr(images: torch.Tensor, reference: torch.Tensor) -> float:
    """PSNR in dB of images (batch, channels, height, width), clamped to -1..1, mean over those that are not equal.

    Equal batches give infinity.

    Raises:
        ZeusError: Images of another size than the reference.
    """
    _check_sizes(images, reference)
    return _mean_psnr(images.clamp(-1, 1), reference.clamp(-1, 1), data_range=2.0)


def measure_ssim(images: torch.Tensor, reference: torch.Tensor) -> float:
    """SSIM (Gaussian window) of images (batch, channels, height, width), clamped to -1..1, mean over the batch.

    Raises:
        ZeusError: Images of another size than the reference.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    _check_sizes(images, reference)
    return float(structural_similarity_index_measure(images, reference, data_range=(-1.0, 1.0)))


def measure_temporal_psnr(videos: torch.Tensor, reference: torch.Tensor) -> float:
    """PSNR in dB of the differences of neighbouring frames of videos (batch, frames, channels, height, width).

    It falls where a video flickers or moves otherwise than its reference, though every frame alone looks right.
    """
    _check_sizes(videos, reference)
    motion, expected = (video.clamp(-1, 1).diff(dim=1).flatten(0, 1) for video in (videos, reference))
    return _mean_psnr(motion, expected, data_range=4.0)


def measure_latent_error(latents: torch.Tensor, reference: torch.Tensor) -> float:
    """``|latents - reference| / |reference|``, Euclidean norms over the whole batch."""
    _check_sizes(latents, reference)
    return float((latents - reference).double().norm() / reference.double().norm())


def _mean_psnr(values: torch.Tensor, reference: torch.Tensor, data_range: float) -> float:
    errors = (values - reference).double().square().flatten(1).mean(1)
    errors = errors[errors > 0]
    return float((10 * torch.log10(data_range**2 / errors)).mean()) if len(errors) else math.inf


def _flatten_frames(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(0, 1) if images.ndim == 5 else images


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_sizes(images: torch.Tensor, reference: torch.Tensor) -> None:
    if images.shape != reference.shape:
        got, expected = ("x".join(map(str, tensor.shape)) for tensor in (images, reference))
        raise ZeusError(
            f"images: got {got} beside a reference of {expected}; expected one size. Compare runs of the same size."
        )
