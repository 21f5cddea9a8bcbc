"""Quality figures against their formulas."""

import math

import pytest
import torch

from zeus_trt.calibration import measure_psnr, measure_ssim


def test_psnr_is_the_mean_over_images_of_clamped_pixels():
    reference = torch.zeros(2, 1, 16, 16)
    images = reference + torch.tensor([0.1, 0.2])[:, None, None, None]
    expected = (10 * math.log10(4 / 0.01) + 10 * math.log10(4 / 0.04)) / 2
    assert measure_psnr(images, reference) == pytest.approx(expected, abs=1e-4)
    assert measure_psnr(torch.full_like(images, 7.0), torch.ones_like(images)) == math.inf


def test_ssim_of_equal_images_is_one_and_falls_with_noise():
    images = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    assert measure_ssim(images, images) == pytest.approx(1.0)
    assert measure_ssim(images.roll(7, 3), images) < 0.5
