"""Serves many requests by one engine: their calls of the denoiser meet in batches."""

from zeus_trt.serving.batcher import Batcher
from zeus_trt.serving.report import Counters, ServedReport
from zeus_trt.serving.ticket import FullError, LateError

__all__ = ["Batcher", "Counters", "FullError", "LateError", "ServedReport"]
