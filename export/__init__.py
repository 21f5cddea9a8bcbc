"""From a diffusers model to a verified bundle."""

from zeus_trt.export.bundle import export_bundle
from zeus_trt.export.model import Model, load_model
from zeus_trt.export.onnx import export_onnx
from zeus_trt.export.verify import verify

__all__ = ["Model", "export_bundle", "export_onnx", "load_model", "verify"]
