"""From a diffusers model to a verified bundle. The package can be called: ``zeus_trt.export(model, output)``.

Names are loaded when they are asked for: AOTInductor packages are built without ONNX.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.export.export import ExportOptions, export_model, export_with_engines
    from zeus_trt.export.importing import import_model
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
    "import_model",
    "load_pipeline",
    "verify_bundle",
]
_PLACES = {
    "export": ("ExportOptions", "export_model", "export_with_engines"),
    "importing": ("import_model",),
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


class _Export(ModuleType):
    """The package, which is also the function of its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """``zeus_trt.exporting.export``."""
        return importlib.import_module("zeus_trt.exporting").export(*args, **options)


sys.modules[__name__].__class__ = _Export
