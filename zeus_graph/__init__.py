"""The method: which steps call the denoiser, and what fills the others."""

from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.plan import PRESETS, Plan
from zeus_trt.zeus_graph.plan_choice import choose_plan, load_plan
from zeus_trt.zeus_graph.policy import OpenPolicy, Policy, StaticPolicy
from zeus_trt.zeus_graph.predictor import PREDICTORS, Predictor
from zeus_trt.zeus_graph.row_policy import DriftPolicy
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import UntraceableError, trace
from zeus_trt.zeus_graph.window import WINDOWS, Ends

__all__ = [
    "PREDICTORS",
    "PRESETS",
    "WINDOWS",
    "DriftPolicy",
    "Ends",
    "OpenPolicy",
    "Plan",
    "Policy",
    "Predictor",
    "SamplingProgram",
    "SolverProgram",
    "StaticPolicy",
    "UntraceableError",
    "choose_plan",
    "fold",
    "load_plan",
    "trace",
]
