"""From a diffusers model to a verified bundle.

Names are loaded when they are asked for: AOTInductor packages are built without ONNX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.export.export import ExportOptions, export_model, export_with_engines
    from zeus_trt.export.loading import load_pipeline
    from zeus_trt.export.runs import Settings
    from zeus_trt.export.stored_adapter import add_adapter
    from zeus_trt.export.verification import verify_bundle

__all__ = [
    "ExportOptions",
    "Settings",
    "add_adapter",
    "export_model",
    "export_with_engines",
    "load_pipeline",
    "verify_bundle",
]
_PLACES = {
    "export": ("ExportOptions", "export_model", "export_with_engines"),
    "loading": ("load_pipeline",),
    "runs": ("Settings",),
    "stored_adapter": ("add_adapter",),
    "verification": ("verify_bundle",),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
