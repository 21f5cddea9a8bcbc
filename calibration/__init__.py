"""Measures trajectories: quality, time and memory of skipped runs."""

from zeus_trt.calibration.quality import measure_psnr, measure_ssim

__all__ = ["measure_psnr", "measure_ssim"]
