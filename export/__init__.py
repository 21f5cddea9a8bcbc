"""From a diffusers model to a verified bundle."""

from zeus_trt.export.bundle import export_bundle
from zeus_trt.export.dispatch import export_model, export_with_engines
from zeus_trt.export.model import Model, load_model
from zeus_trt.export.pipeline import export_pipeline
from zeus_trt.export.runs import Settings
from zeus_trt.export.verification import verify_bundle

__all__ = [
    "Model",
    "Settings",
    "export_bundle",
    "export_model",
    "export_pipeline",
    "export_with_engines",
    "load_model",
    "verify_bundle",
]
