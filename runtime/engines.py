"""Opening the engine of a bundle by the name of its backend."""

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine

BACKENDS = ("onnxruntime", "aot-inductor", "tensorrt", "tensorrt-rtx")


def open_engine(bundle: Bundle, backend: str = "onnxruntime") -> Denoiser:
    """Opens an engine that ``zeus-trt build`` made, or the graph itself in ONNX Runtime.

    Raises:
        ZeusError: An unknown backend, a missing library, or no engine that this machine can run; the
            message says why each that is there is refused.
    """
    if backend == "onnxruntime":
        return OnnxRuntimeEngine(bundle.onnx)
    if backend == "aot-inductor":
        from zeus_trt.runtime.aot_engine import AotEngine

        return AotEngine.open(bundle)
    if backend in ("tensorrt", "tensorrt-rtx"):
        from zeus_trt.runtime.tensorrt_engine import TensorRTEngine

        return TensorRTEngine.open(bundle, backend)
    raise ZeusError(f"backend: got {backend!r}; expected one of {', '.join(BACKENDS)}. Choose one of these.")
