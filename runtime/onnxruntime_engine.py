"""ONNX Runtime: the engine of a fresh machine."""

from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.named_inputs import cast_inputs

_TORCH_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}


class OnnxRuntimeEngine:
    """An ONNX graph as a denoiser, run by ONNX Runtime on the CPU.

    Args:
        onnx: The graph; its weights lie beside it.
        provider: Execution provider. A provider that the session does not end up with is
            an error, never a silent fallback.
        num_threads: Threads of one call; all physical cores by default.

    Raises:
        ZeusError: ONNX Runtime or the provider is missing, or the graph does not load.
    """

    backend = "onnxruntime"

    def __init__(self, onnx: Path, provider: str = "CPUExecutionProvider", num_threads: int | None = None):
        ort = _import_onnxruntime()
        if provider not in ort.get_available_providers():
            raise ZeusError(
                f"onnxruntime: got no {provider}; expected one of {', '.join(ort.get_available_providers())}. "
                "Run `zeus-trt doctor`."
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads or 0
        try:
            self._session = ort.InferenceSession(str(onnx), options, providers=[provider])
        except Exception as error:  # onnxruntime raises a class of its own per fault, all bare Exceptions
            raise ZeusError(
                f"onnxruntime: got {onnx.name}, which does not load ({_first_line(error)}); expected a graph that this "
                f"ONNX Runtime {ort.__version__} can run. Export the model again."
            ) from error
        if provider not in self._session.get_providers():
            raise ZeusError(
                f"onnxruntime: got a session on {self._session.get_providers()}; expected {provider}. "
                "Run `zeus-trt doctor`."
            )
        specs = self._session.get_inputs()
        if unknown := [spec for spec in specs if spec.type not in _TORCH_TYPES]:
            raise ZeusError(
                f"onnxruntime: got {unknown[0].name} of {unknown[0].type}; expected one of {', '.join(_TORCH_TYPES)}. "
                "Build another engine: zeus-trt build."
            )
        self._types = {spec.name: _TORCH_TYPES[spec.type] for spec in specs}

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Runs the graph.

        Args:
            **inputs: The graph's inputs by name, batch first; cast to the graph's types. A
                0-d or (1,) timestep serves every row.

        Returns:
            The model output, a CPU tensor of the caller's own.

        Raises:
            ZeusError: An input is missing, unknown, or of a shape the graph does not take.
        """
        cast = cast_inputs(self.backend, inputs, self._types, torch.device("cpu"))
        feed = {name: value.numpy() for name, value in cast.items()}
        try:
            (output,) = self._session.run(None, feed)
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in feed.items())
            raise ZeusError(
                f"onnxruntime: got {shapes}, which the graph refuses ({_first_line(error)}); expected the sizes of its "
                "manifest. See `zeus-trt inspect`."
            ) from error
        return torch.from_numpy(output)

    def __repr__(self) -> str:
        return f"OnnxRuntimeEngine(provider={self._session.get_providers()[0]!r}, inputs={list(self._types)})"


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ZeusError(
            "onnxruntime: got no such package; expected it for running on the CPU. Install it: pip install onnxruntime."
        ) from error
    return onnxruntime


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
