"""Measures skipped runs: quality, time and memory, side by side with full runs and other accelerations."""

from zeus_trt.evaluation.quality import measure_psnr, measure_ssim

__all__ = ["measure_psnr", "measure_ssim"]
