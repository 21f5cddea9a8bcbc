"""Runs bundles: engines, guidance, the solver loop."""

from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.denoiser import Denoiser, EnginePair
from zeus_trt.runtime.engines.eager import EagerEngine
from zeus_trt.runtime.engines.engine import Engine, EngineInfo
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.runtime.guidance import ClassifierFreeGuidance, Guidance
from zeus_trt.runtime.loop import count_evaluations, run, run_steps
from zeus_trt.runtime.noise import draw_noise
from zeus_trt.runtime.pipelines.acceleration import accelerate
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
    "EnginePair",
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
