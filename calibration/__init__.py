"""Measures trajectories: quality, time and memory of skipped runs."""

from zeus_trt.calibration.compare import Comparison, compare_ratios
from zeus_trt.calibration.quality import measure_psnr, measure_ssim

__all__ = ["Comparison", "compare_ratios", "measure_psnr", "measure_ssim"]
