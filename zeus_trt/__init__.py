"""zeus-trt: diffusion models with fewer network calls, on compiled engines.

The names below are loaded when they are asked for: ``import zeus_trt`` loads neither torch nor diffusers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.calibrating import calibrate
    from zeus_trt.comparing import compare
    from zeus_trt.errors import ZeusError
    from zeus_trt.export import add_adapter, export_model, import_model
    from zeus_trt.quantizing import measure_sensitivity, quantize
    from zeus_trt.runtime import Bundle, Guidance, Session, Start, accelerate
    from zeus_trt.zeus_graph import Plan
    from zeus_trt.zeus_graph.plan_choice import load_plan

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "Guidance",
    "Plan",
    "Session",
    "Start",
    "ZeusError",
    "accelerate",
    "add_adapter",
    "calibrate",
    "compare",
    "export",
    "export_model",
    "import_model",
    "load_plan",
    "measure_sensitivity",
    "quantize",
]
_PLACES = {
    "calibrating": ("calibrate",),
    "zeus_graph.plan_choice": ("load_plan",),
    "comparing": ("compare",),
    "errors": ("ZeusError",),
    "export": ("add_adapter", "export_model", "import_model"),
    "quantizing": ("measure_sensitivity", "quantize"),
    "runtime": ("Bundle", "Guidance", "Session", "Start", "accelerate"),
    "zeus_graph": ("Plan",),
}


def __getattr__(name: str) -> Any:
    if name == "export":  # a package that can be called
        return importlib.import_module(f"{__name__}.export")
    for module, names in _PLACES.items():
        if name in names:
            found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
