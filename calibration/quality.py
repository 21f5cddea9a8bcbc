"""How far pictures are from reference pictures."""

import torch


def measure_psnr(images: torch.Tensor, reference: torch.Tensor) -> float:
    """PSNR in dB of images (batch, channels, height, width), clamped to -1..1, mean over the batch.

    Equal images give infinity.
    """
    from torchmetrics.functional.image import peak_signal_noise_ratio

    return float(
        peak_signal_noise_ratio(images, reference, data_range=(-1.0, 1.0), reduction="elementwise_mean", dim=(1, 2, 3))
    )


def measure_ssim(images: torch.Tensor, reference: torch.Tensor) -> float:
    """SSIM (Gaussian window) of images (batch, channels, height, width), clamped to -1..1, mean over the batch."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    return float(structural_similarity_index_measure(images, reference, data_range=(-1.0, 1.0)))
