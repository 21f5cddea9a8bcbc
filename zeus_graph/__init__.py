"""The method: which steps call the denoiser, and what fills the others."""

from zeus_trt.zeus_graph.controller import StepController
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.plan import PRESETS, Plan
from zeus_trt.zeus_graph.plan_choice import choose_plan
from zeus_trt.zeus_graph.predictor import PREDICTORS, Predictor, choose_predictor
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import UntraceableError, trace
from zeus_trt.zeus_graph.window import WINDOWS, Ends

__all__ = [
    "PREDICTORS",
    "PRESETS",
    "WINDOWS",
    "Ends",
    "Plan",
    "Predictor",
    "SamplingProgram",
    "SolverProgram",
    "StepController",
    "UntraceableError",
    "choose_plan",
    "choose_predictor",
    "fold",
    "trace",
]
