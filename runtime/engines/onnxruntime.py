"""ONNX Runtime: the engine of a fresh machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.fused_weights import FusedWeight
from zeus_trt.runtime.bundle.mapped_files import MappedFiles
from zeus_trt.runtime.bundle.onnx_references import list_references
from zeus_trt.runtime.bundle.precision import METADATA as PRECISION
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import METADATA, SizeRules
from zeus_trt.runtime.engines.engine import Engine, EngineInfo

_TORCH_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}
_BFLOAT16 = 16
_ONNX_TYPES = {  # numbers of onnx.TensorProto: numpy has no bfloat16
    torch.float32: 1,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.bfloat16: _BFLOAT16,
}


class OnnxRuntimeEngine(Engine):
    """An ONNX graph as a denoiser. Its tensors are bound where they are: nothing is copied to the host on CUDA.

    The CUDA provider is untested on hardware; the CPU runs through the same binding. ONNX Runtime has a stream of its
    own there: each call waits for torch's current stream before, and for its own after.

    Args:
        onnx: The graph; its weights are beside it.
        provider: Execution provider. A provider that the session does not end up with is
            an error, never a silent fallback.
        num_threads: Threads of one call; by default as many as torch uses.
        device_index: Which GPU, for the CUDA provider.
        weights: Initializers that take the place of the graph's own, by name.

    Raises:
        ZeusError: ONNX Runtime or the provider is missing, or the graph does not load.
    """

    def __init__(
        self,
        onnx: Path,
        provider: str = "CPUExecutionProvider",
        num_threads: int | None = None,
        device_index: int = 0,
        weights: Mapping[str, FusedWeight] | None = None,
    ):
        ort = _import_onnxruntime()
        if provider not in ort.get_available_providers():
            raise ZeusError(
                f"onnxruntime: got no {provider}; expected one of {', '.join(ort.get_available_providers())}. "
                "Run `zeus-trt doctor`."
            )
        device = torch.device("cuda", device_index) if provider == "CUDAExecutionProvider" else torch.device("cpu")
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads or torch.get_num_threads()
        options.log_severity_level = 4  # its errors are raised; its own lines show names from the graph unescaped
        settings = {"device_id": device_index} if device.type == "cuda" else {}
        self._values: dict[str, Any] = {}  # the session reads their memory
        try:
            self._files = MappedFiles([onnx, *(onnx.parent / name for name in sorted(list_references(onnx)))])
            graph = self._replace(ort, onnx, weights, options) if weights else str(onnx)
            self._session = ort.InferenceSession(graph, options, [(provider, settings)], enable_fallback=0)
        except Exception as error:  # onnxruntime raises a class of its own per fault, all bare Exceptions
            raise ZeusError(
                f"onnxruntime: got {onnx.name}, which does not load ({_join_lines(error)}); expected a graph that this "
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
        self._dtypes = {spec.name: _TORCH_TYPES[spec.type] for spec in specs}
        self._output = self._session.get_outputs()[0].name
        metadata = self._session.get_modelmeta().custom_metadata_map
        self._rules = SizeRules.from_json(metadata[METADATA]) if METADATA in metadata else None
        own = Precision.of(next(iter(self._dtypes.values()))) or Precision.FP32
        precision = Precision.read(metadata.get(PRECISION, own))
        size = sum(file.stat().st_size for file in (onnx, Path(f"{onnx}.data")) if file.is_file())
        self.info = EngineInfo("onnxruntime", precision, device, None, size)

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._rules:
            self._rules.check(cast)
        device = self.info.device
        if device.type == "cpu":  # on a GPU the weights are a copy
            self._files.check()
        place = (device.type, device.index or 0)
        binding = self._session.io_binding()
        for name, value in cast.items():
            binding.bind_input(name, *place, _ONNX_TYPES[value.dtype], list(value.shape), value.data_ptr())
        binding.bind_output(self._output, *place)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in cast.items())
            raise ZeusError(
                f"onnxruntime: got {shapes}, at which the graph fails ({_join_lines(error)}); expected an output. Pass "
                "sizes that its bundle takes; if these are, the graph is broken: export the model again, or report it."
            ) from error
        output = torch.from_dlpack(binding.get_outputs()[0])
        if device.type == "cuda":  # ONNX Runtime's memory, which another thread's call may be given once this is read
            output = output.clone()
            torch.cuda.current_stream(device).synchronize()
        return output

    def _replace(self, ort: Any, onnx: Path, weights: Mapping[str, FusedWeight], options: Any) -> bytes:
        """The graph with these weights; of those in a file beside it, ``options`` hold the numbers."""
        content = bytearray(onnx.read_bytes())
        for name, weight in weights.items():
            kind, place = _ONNX_TYPES[weight.value.dtype], weight.initializer
            numbers = weight.value.view(torch.int16 if kind == _BFLOAT16 else weight.value.dtype).numpy()
            if place.is_external:
                self._values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(numbers, kind)
            else:
                content[place.offset : place.offset + numbers.nbytes] = numbers.tobytes()
        # Before the graph is optimised, unlike add_initializer: what is folded into others has the new numbers.
        options.add_external_initializers(list(self._values), list(self._values.values()))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(onnx.parent))
        return bytes(content)

    def _release(self) -> None:
        self._session = None
        self._values.clear()
        self._files.close()


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ZeusError(
            "onnxruntime: got no such package; expected it for running on the CPU. Install it: pip install onnxruntime."
        ) from error
    return onnxruntime


def _join_lines(error: Exception) -> str:
    """Its words on one line, but for advice that is not ours."""
    return " ".join(str(error).partition("Please fix")[0].split())[:300]
