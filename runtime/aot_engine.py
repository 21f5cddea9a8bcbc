"""AOTInductor packages as engines."""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.cuda_graph import CudaGraphs
from zeus_trt.runtime.engine import Engine, EngineInfo, name_precision
from zeus_trt.runtime.engine_folder import AOT_INDUCTOR, Needs, find_engine
from zeus_trt.runtime.engine_profile import Profile
from zeus_trt.runtime.manifest import SymbolSpec, TensorSpec


class AotEngine(Engine):
    """A ``.pt2`` package as a denoiser.

    Args:
        package: The file.
        inputs: Names, types and axes, in the order of the package.
        profile: Shapes it was built for: the package itself takes others, and computes something.
        device: What it was built for.
        cuda_graph: Replay it from a CUDA graph; untested on hardware.
        symbols: What the axes' names are in pixels, for messages.

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
    ):
        device = torch.device(device)
        if cuda_graph and device.type != "cuda":
            raise ZeusError(f"aot-inductor: got a CUDA graph on {device}; expected a CUDA device. Leave it out.")
        self._symbols = symbols
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
                f"aot-inductor: got {package.name}, which does not load ({str(error).strip().splitlines()[0]}); "
                f"expected a package for torch {torch.__version__} on {device}. Build it again."
            ) from error
        self._run: Any = CudaGraphs(self._call, device) if cuda_graph else self._call
        precision = name_precision(next(iter(self._dtypes.values())))
        self.info = EngineInfo(AOT_INDUCTOR, precision, device, profile, package.stat().st_size)

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        cuda_graph: bool = False,
    ) -> "AotEngine":
        """The bundle's package for this machine, checked before it is loaded.

        Raises:
            ZeusError: There is none; the message says why each that is there is refused.
        """
        found = find_engine(bundle.path, Needs.of(bundle.manifest, AOT_INDUCTOR, device, precision=precision))
        manifest, profile = bundle.manifest, found.record.spec.profile
        return cls(found.path, manifest.inputs, profile, device, cuda_graph, manifest.symbols)

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        device = self.info.device
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with torch.no_grad(), on_device, self._lock:
            return self._run(**cast)

    def _release(self) -> None:
        self._model = self._run = None

    def _call(self, **inputs: torch.Tensor) -> torch.Tensor:
        output = self._model(*inputs.values())
        return output[0] if isinstance(output, list | tuple) else output
