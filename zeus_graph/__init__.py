"""The method: which steps call the denoiser, and what fills the others."""

from zeus_trt.zeus_graph.controller import StepController
from zeus_trt.zeus_graph.plan import PRESETS, WINDOWS, StepPlan
from zeus_trt.zeus_graph.predictor import PREDICTORS, Predictor

__all__ = ["PREDICTORS", "PRESETS", "WINDOWS", "Predictor", "StepController", "StepPlan"]
