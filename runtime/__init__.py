"""Runs bundles: engines, guidance, the solver loop."""

from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.guidance import ClassifierFreeGuidance
from zeus_trt.runtime.loop import Step, count_evaluations, run_steps
from zeus_trt.runtime.manifest import Manifest
from zeus_trt.runtime.noise import draw_noise
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine
from zeus_trt.runtime.program import ProgramLoop
from zeus_trt.runtime.scheduler import load_scheduler
from zeus_trt.runtime.session import Report, Result, Session

__all__ = [
    "Bundle",
    "ClassifierFreeGuidance",
    "Denoiser",
    "Manifest",
    "OnnxRuntimeEngine",
    "ProgramLoop",
    "Report",
    "Result",
    "Session",
    "Step",
    "count_evaluations",
    "draw_noise",
    "load_scheduler",
    "run_steps",
]
