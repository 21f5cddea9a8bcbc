"""TensorRT and TensorRT-RTX engines."""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import read_engine
from zeus_trt.runtime.bundle.engine_folder import EngineFile, ask_engine, load_engine
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.foreign import Foreign
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.bundle.initializers import find_initializers
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.engines.cuda_graph import CudaGraphs
from zeus_trt.runtime.engines.engine import Engine, EngineInfo
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

TORCH_TYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
}
_TENSORRT_TYPES = {dtype: name for name, dtype in TORCH_TYPES.items()}


class TensorRTEngine(Engine):
    """An engine file as a denoiser; one class for TensorRT 10, TensorRT 11 and TensorRT-RTX.

    Untested on hardware: its tests run against a double of the module.

    Threads may share it, each on its own stream: every stream has an execution context. All share one block
    of scratch memory, so that calls on several streams run one after the other on the device.

    Args:
        file: What ``find_engine`` found. It is native code, so one that was not built here is refused, unless it was
            trusted there. Its bytes are read once, and checked.
        manifest: That of its bundle, or what it says of an engine that others compiled.
        device: The CUDA device.
        weight_budget: Bytes of weights to keep on the GPU, for engines built with weight streaming; by default what
            TensorRT chooses.
        cuda_graph: Replay it from a CUDA graph.

    Raises:
        ZeusError: No CUDA device, a file that was changed, or an engine that TensorRT does not load.
    """

    def __init__(
        self,
        file: EngineFile,
        manifest: Manifest | Foreign,
        device: str | torch.device = "cuda",
        weight_budget: int | None = None,
        cuda_graph: bool = False,
    ):
        if file.record is None or file.reasons:
            raise ZeusError(
                f"engine: got {file.path.parent.name} ({', '.join(file.reasons)}); expected one for this machine. "
                "Build it again."
            )
        self.record: EngineRecord = file.record
        self.device = torch.device(device)
        spec = self.record.spec
        self.info = EngineInfo(spec.backend, spec.precision, self.device, spec.profile, self.record.size)
        if not torch.cuda.is_available():  # before anything of TensorRT: without CUDA it may end the process
            raise ZeusError(f"{self.backend}: got no CUDA device; expected an NVIDIA GPU. Run `zeus-trt doctor`.")
        plan = read_engine(file.path, self.record)
        self._trt = import_tensorrt(self.backend)
        self._logger = make_logger(self._trt)
        self._axes = {spec.name: spec.axes for spec in manifest.inputs}
        self._symbols = manifest.symbols
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()
        with torch.cuda.device(self.device):
            self._runtime = self._check(self._trt.Runtime(self._logger), "get a runtime")
            if spec.options.get("version_compatible"):
                self._runtime.engine_host_code_allowed = True  # such engines carry a runtime
            self._engine = self._check(self._runtime.deserialize_cuda_engine(plan), "be loaded")
            del plan
            if spec.options.get("weight_streaming"):
                automatic = self._engine.get_weight_streaming_automatic_budget()
                self._engine.weight_streaming_budget_v2 = automatic if weight_budget is None else weight_budget
        self._memory: torch.Tensor | None = None
        self._done: torch.cuda.Event | None = None
        self._read_tensors(manifest)
        if cuda_graph and self._on_host:
            raise ZeusError(
                f"{self.backend}: got a CUDA graph for an engine that reads {', '.join(sorted(self._on_host))} on the "
                "host; expected none. Leave it out."
            )
        self._run: Any = CudaGraphs(self._enqueue, self.device) if cuda_graph else self._enqueue
        self.prepares_shapes = cuda_graph

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        backend: str,
        device: str | torch.device = "cuda",
        precision: str | None = None,
        trust: bool | None = None,
        **options: Any,
    ) -> "TensorRTEngine":
        """The bundle's engine for this machine, found before anything is deserialised; ``options`` as in the class.

        Raises:
            ZeusError: As ``load_engine``; ``trust`` is as there.
        """
        asked = ask_engine(bundle.manifest, backend, device, precision)
        if bundle.adapter:
            asked = replace(asked, options={"refittable": True})

        def load(path: Path, record: EngineRecord) -> "TensorRTEngine":
            engine = cls(EngineFile(path, record), bundle.manifest, device, **options)
            if bundle.adapter:
                kind = record.spec.precision
                engine._refit({name: weight.value for name, weight in fuse(bundle, kind).items()}, bundle.graph(kind))
            return engine

        return load_engine(bundle.path, asked, load, trust)

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        """Enqueues the engine on torch's current stream."""
        with torch.cuda.device(self.device), self._lock:
            stream = torch.cuda.current_stream(self.device)
            if self._done:
                stream.wait_event(self._done)
            output = self._run(**cast)
            self._done = torch.cuda.Event()
            self._done.record(stream)
        return output

    def _release(self) -> None:
        if self._done:
            self._done.synchronize()  # the device may still run the engine, and scratch in its memory
        self._contexts.clear()
        self._run = self._engine = self._runtime = self._memory = None

    def __repr__(self) -> str:
        spec = self.record.spec
        return f"TensorRTEngine({spec.backend} {spec.backend_version}, {spec.precision}, {spec.target}, {self.device})"

    def _enqueue(self, **cast: torch.Tensor) -> torch.Tensor:
        stream = torch.cuda.current_stream(self.device)
        context = self._find_context(stream.cuda_stream)
        bound = {name: value.cpu() if name in self._on_host else value for name, value in cast.items()}
        for name, value in bound.items():
            self._check(context.set_input_shape(name, tuple(value.shape)), f"take the shape of {name}")
            self._check(context.set_tensor_address(name, value.data_ptr()), f"take the address of {name}")
        if missing := context.infer_shapes():
            raise self._fault(f"infer the output's shape without {', '.join(missing)}")
        shape = tuple(context.get_tensor_shape(self._output))
        if any(size < 0 for size in shape):
            raise self._fault(f"infer the output's shape, which is {shape}")
        output = torch.empty(shape, dtype=self._output_dtype, device=self.device)
        self._check(context.set_tensor_address(self._output, output.data_ptr()), f"take the address of {self._output}")
        self._check(context.execute_async_v3(stream.cuda_stream), "run")
        for value in bound.values():
            if value.is_cuda:  # whoever made it, torch must not reuse its memory before this call has run
                value.record_stream(stream)
        return output

    def _find_context(self, stream: int) -> Any:
        """The stream's own context; it scratches in the memory that all share."""
        if stream not in self._contexts:
            strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
            context = self._check(self._engine.create_execution_context(strategy), "get room for a context")
            if self._memory is None:
                size = max(self._engine.device_memory_size_v2, 1)
                self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)  # aligned to 512 bytes by torch
            context.set_device_memory(self._memory.data_ptr(), self._memory.numel())
            self._contexts[stream] = context
        return self._contexts[stream]

    def _read_tensors(self, manifest: Manifest | Foreign) -> None:
        trt, engine = self._trt, self._engine
        names = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
        types = {name: TORCH_TYPES[engine.get_tensor_dtype(name).name] for name in names}
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self._output = manifest.output.name
        if set(names) != {*inputs, self._output} or inputs == names:
            raise self._fault(f"be this bundle's, with the tensors {', '.join(names)}")
        self._output_dtype = types.pop(self._output)
        self._dtypes = types
        self._on_host = {name for name in inputs if engine.get_tensor_location(name) == trt.TensorLocation.HOST}

    def _refit(self, weights: Mapping[str, torch.Tensor], onnx: Path) -> None:
        """Replaces weights of the engine, which TensorRT names as the graph names its initializers."""
        with torch.cuda.device(self.device):
            refitter = self._check(self._trt.Refitter(self._engine, self._logger), "be refitted")
            values = {**weights}
            while values:
                for name, value in values.items():
                    kind = getattr(self._trt.DataType, _TENSORRT_TYPES[value.dtype])
                    given = self._trt.Weights(kind, value.data_ptr(), value.numel())
                    self._check(refitter.set_named_weights(name, given), f"take the weight {name}")
                weights = {**weights, **values}  # they must live until the end
                missing = [*refitter.get_missing_weights()]  # combined with some of these
                values = {name: place.read() for name, place in find_initializers(onnx, missing).items()}
                if len(values) < len(missing) or values.keys() & weights.keys():
                    raise self._fault(f"be refitted without {', '.join(missing)}")
            self._check(refitter.refit_cuda_engine(), "be refitted")

    def _check(self, result: Any, what: str) -> Any:
        """TensorRT says no by returning None or False."""
        if result is None or result is False:
            raise self._fault(what)
        return result

    def _fault(self, what: str) -> ZeusError:
        said = self._logger.last or "it does not say why"
        return ZeusError(
            f"{self.backend}: got an engine that could not {what} ({said}); expected {self.record.key} to run on "
            f"{self.device}. Free GPU memory, or build it again."
        )


def make_logger(trt: Any) -> Any:
    """Keeps the last error, instead of writing to the terminal."""

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity, message):
            with contextlib.suppress(Exception):  # the caller is C++ and cannot take one
                if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                    self.last = message

    return Logger()
