"""AOTInductor packages as engines."""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import copy_engine
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, ask_engine, load_engine
from zeus_trt.runtime.bundle.engine_profile import Profile
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.fused_weights import FusedWeight, fuse
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.cuda_graph import CudaGraphs
from zeus_trt.runtime.engines.engine import Engine, EngineInfo

_PREFIX = "denoiser."  # of the denoiser's parameters in what export traces


class AotEngine(Engine):
    """A ``.pt2`` package as a denoiser.

    A package is native code, which runs as soon as it is loaded: ``open`` loads none that was not built here.

    Args:
        package: The file. Its content must be trusted.
        inputs: Names, types and axes, in the order of the package.
        profile: Shapes it was built for: the package itself takes others, and computes something.
        device: What it was built for.
        cuda_graph: Replay it from a CUDA graph; untested on hardware.
        symbols: What the axes' names are in pixels, for messages.
        precision: What it computes in.
        place: Which of its outputs is read, of a package that others made, whose inputs may have names.

    Raises:
        ZeusError: The package does not load.
    """

    def __init__(
        self,
        package: Path,
        inputs: Sequence[TensorSpec],
        profile: Profile,
        device: str | torch.device = "cpu",
        cuda_graph: bool = False,
        symbols: Sequence[SymbolSpec] = (),
        precision: Precision = Precision.FP32,
        place: int | None = None,
    ):
        device = torch.device(device)
        if cuda_graph and device.type != "cuda":
            raise ZeusError(f"aot-inductor: got a CUDA graph on {device}; expected a CUDA device. Leave it out.")
        self._symbols, self._place = symbols, place
        self._lock = threading.Lock()
        self._axes = {spec.name: spec.axes for spec in inputs}
        self._dtypes = {spec.name: getattr(torch, spec.dtype) for spec in inputs}
        try:
            # Single-threaded: one call at a time, as the lock has it, of which none waits for the device.
            self._model: Any = torch._inductor.aoti_load_package(
                str(package), run_single_threaded=True, device_index=-1 if device.index is None else device.index
            )
        except Exception as error:  # torch's loader raises bare RuntimeErrors
            raise ZeusError(
                f"aot-inductor: got {package.name}, which does not load ({say_cause(error)}); "
                f"expected a package for torch {torch.__version__} on {device}. Build it again."
            ) from error
        self._run: Any = CudaGraphs(self._call, device) if cuda_graph else self._call
        self.prepares_shapes = cuda_graph
        self.info = EngineInfo(AOT_INDUCTOR, precision, device, profile, package.stat().st_size)

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        cuda_graph: bool = False,
        trust: bool | None = None,
    ) -> "AotEngine":
        """The bundle's package for this machine; it loads a checked copy, which nobody else can change.

        Raises:
            ZeusError: As ``load_engine``; ``trust`` is as there.
        """
        manifest = bundle.manifest

        def load(path: Path, record: EngineRecord) -> "AotEngine":
            built = record.spec
            with copy_engine(path, record) as package:
                engine = cls(
                    package, manifest.inputs, built.profile, device, cuda_graph, manifest.symbols, built.precision
                )
            engine.record = record
            if bundle.adapter:
                engine._update(fuse(bundle, built.precision))
            return engine

        return load_engine(bundle.path, ask_engine(manifest, AOT_INDUCTOR, device, precision), load, trust)

    def _update(self, weights: Mapping[str, FusedWeight]) -> None:
        """Replaces constants of the package by weights of the graph."""
        parameters = {name: weight for weight in weights.values() for name in weight.parameters}
        values = {_PREFIX + name: weight.restore().to(self.info.device) for name, weight in parameters.items()}
        missing = values.keys() - {*self._model.get_constant_fqns()}
        try:
            if missing:
                raise RuntimeError(f"it has no constant {min(missing)}")
            self._model.load_constants(values, check_full_update=False)
        except Exception as error:  # torch's loader raises bare RuntimeErrors
            raise ZeusError(
                f"aot-inductor: got a package that takes no weights of an adapter ({say_cause(error)}); expected one "
                "with a constant for each parameter. Use another backend, or export the pipeline with the adapter "
                "active."
            ) from error

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        device = self.info.device
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with torch.no_grad(), on_device, self._lock:
            return self._run(**cast)

    def _release(self) -> None:
        if self.info.device.type == "cuda":
            torch.cuda.synchronize(self.info.device)  # the device may still run the package's code
        self._model = self._run = None

    def _call(self, **inputs: torch.Tensor) -> torch.Tensor:
        if self._place is not None:
            return self._model.loader.boxed_run([*inputs.values()])[self._place]
        output = self._model(*inputs.values())
        return output[0] if isinstance(output, list | tuple) else output
