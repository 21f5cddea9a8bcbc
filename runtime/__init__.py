"""Runs bundles: engines, guidance, the solver loop."""

from zeus_trt.runtime.acceleration import accelerate
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.eager_engine import EagerEngine
from zeus_trt.runtime.engine import Engine, EngineInfo
from zeus_trt.runtime.guidance import ClassifierFreeGuidance, Guidance
from zeus_trt.runtime.loop import count_evaluations, run, run_steps
from zeus_trt.runtime.manifest import Manifest
from zeus_trt.runtime.noise import draw_noise
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine
from zeus_trt.runtime.report import Report, Result
from zeus_trt.runtime.scheduler import load_scheduler
from zeus_trt.runtime.session import Session
from zeus_trt.runtime.start import Start
from zeus_trt.runtime.steppers import ProgramStepper, SchedulerStepper, Step

__all__ = [
    "Bundle",
    "ClassifierFreeGuidance",
    "Denoiser",
    "EagerEngine",
    "Engine",
    "EngineInfo",
    "Guidance",
    "Manifest",
    "OnnxRuntimeEngine",
    "ProgramStepper",
    "Report",
    "Result",
    "SchedulerStepper",
    "Session",
    "Start",
    "Step",
    "accelerate",
    "count_evaluations",
    "draw_noise",
    "load_scheduler",
    "run",
    "run_steps",
]
