"""The Python module of TensorRT or TensorRT-RTX."""

import importlib
from typing import Any

from zeus_trt.errors import ZeusError, say_cause

# The wheel of TensorRT-RTX brings tensorrt_rtx_bindings; tensorrt_rtx is a second package that re-exports it.
MODULES = {"tensorrt": ("tensorrt",), "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}


def import_tensorrt(backend: str) -> Any:
    """The module of ``backend``; both have the same API.

    Raises:
        ZeusError: It is not installed, or its libraries do not load.
    """
    reason = ""
    for name in MODULES[backend]:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = str(error)
        except OSError as error:  # a shared library that does not load
            reason = say_cause(error)
    raise ZeusError(
        f"{backend}: got no package that loads ({reason}); expected the {backend} libraries. "
        f"Install them: pip install 'zeus-trt[{backend}]'."
    )
