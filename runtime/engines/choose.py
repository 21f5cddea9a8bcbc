"""Opening the engine of a bundle by the name of its backend."""

import logging

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_folder import UntrustedError
from zeus_trt.runtime.bundle.engine_trust import check_trust
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.denoiser import Denoiser, EnginePair
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.zeus_graph.counts import show

BACKENDS = ("tensorrt", "tensorrt-rtx", "aot-inductor", "onnxruntime")
"""In the order in which ``auto`` tries them."""

_log = logging.getLogger("zeus_trt")


def open_engine(
    bundle: Bundle,
    backend: str = "onnxruntime",
    device: str | torch.device | None = None,
    trust_engines: bool | None = None,
) -> Engine:
    """Opens an engine that ``zeus-trt build`` made, or the graph itself in ONNX Runtime; see ``choose_engine``."""
    return choose_engine(bundle, backend, device, trust_engines=trust_engines)[0]


def choose_engine(
    bundle: Bundle,
    backend: str = "auto",
    device: str | torch.device | None = None,
    cuda_graph: bool = False,
    trust_engines: bool | None = None,
    precision: str | None = None,
) -> tuple[Engine, str]:
    """Opens the best engine that runs here.

    Args:
        bundle: The bundle with its engines. If it has an adapter, that is in the engine's weights.
        backend: One of ``BACKENDS``, or ``auto``; with a precision behind it, ``onnxruntime:int8``, of that graph.
        device: Where it shall run; by default a GPU if there is one that serves, else the CPU.
        cuda_graph: Replay it from a CUDA graph, which saves the launches of a small model; not of ONNX Runtime.
        trust_engines: Load engines that were built on another machine too. They are native code: do so only if you
            trust those who made the bundle. By default ``ZEUS_TRT_TRUST_ENGINES`` (0 or 1) says it.
        precision: That of the graph, where the backend does not say it; by default the bundle's first.

    Returns:
        The engine, and why it was chosen: which better ones there are, and why they do not run.

    Raises:
        ZeusError: An unknown backend, a missing library, or no engine that this machine can run; the
            message says why each that is there is refused.
    """
    backend, _, graph = backend.partition(":")
    if graph and precision not in (None, graph):
        raise ZeusError(f"precision: got {precision} beside {backend}:{graph}; expected one of the two. Leave one out.")
    if backend not in (*BACKENDS, "auto"):
        raise ZeusError(f"backend: got {backend!r}; expected auto, {', '.join(BACKENDS)}. Choose one of these.")
    trust = check_trust(trust_engines)
    devices = [check_device(device)] if device is not None else [torch.device(name) for name in _list_devices()]
    refused: list[str] = []
    known = (bundle.manifest.base_backend,) if bundle.manifest.foreign else BACKENDS
    for place in devices:
        for name in known if backend == "auto" else (backend,):
            try:
                engine = _open(bundle, name, place, cuda_graph, trust, graph or precision)
                if graph:
                    engine.graph = graph
                if bundle.adapter:
                    engine.adapter = bundle.adapter.sha256
            except ZeusError as error:
                if isinstance(error, UntrustedError) and backend == "auto":
                    _log.warning("%s", error)
                refused.append(str(error))
                continue
            if not refused:
                return engine, "asked for" if backend != "auto" else "the best"
            return engine, f"{'asked for' if backend != 'auto' else 'the best that runs here'} ({'; '.join(refused)})"
    raise ZeusError(refused[-1] if backend != "auto" else "; ".join(refused))


def check_given(
    engine: Denoiser | EnginePair,
    bundle: Bundle,
    backend: str,
    cuda_graph: bool | None,
    precision: str | None,
    device: str | torch.device | None,
) -> None:
    """Refuses an engine that a session is given beside a choice of one, on another device, or with another adapter.

    Raises:
        ZeusError: It is such an engine.
    """
    if backend != "auto" or cuda_graph or precision:
        asked = f"the backend {backend}" if backend != "auto" else "cuda_graph" if cuda_graph else "a precision"
        raise ZeusError(f"engine: got one, and {asked}; expected either. Leave one of them out.")
    asked = bundle.adapter.sha256 if bundle.adapter else ""
    for one in (engine.full, engine.quantized) if isinstance(engine, EnginePair) else (engine,):
        place = getattr(getattr(one, "info", None), "device", None)
        if place and device is not None and check_device(device) not in (place, torch.device(place.type)):
            raise ZeusError(f"device: got {device} beside an engine on {place}; expected none. Leave it out.")
        if (found := getattr(one, "adapter", asked)) != asked:
            raise ZeusError(
                f"engine: got one with the adapter {found[:12] or 'none'}; expected {asked[:12] or 'none'}, that of "
                "the bundle. Open it of a bundle with this adapter."
            )


def _list_devices() -> tuple[str, ...]:
    return ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)


def check_device(device: str | torch.device) -> torch.device:
    """The device of that name; raises ZeusError for an unknown kind."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ZeusError(f"device: got {show(device)}; expected cpu, cuda or cuda:N. Choose one of these.") from error


def _open(
    bundle: Bundle, backend: str, device: torch.device, cuda_graph: bool, trust: bool, precision: str | None
) -> Engine:
    if cuda_graph and (backend == "onnxruntime" or device.type != "cuda"):
        raise ZeusError(
            f"cuda_graph: got it for {backend} on {device}; expected TensorRT or AOTInductor on a CUDA device. "
            "Leave it out."
        )
    if bundle.manifest.foreign:
        from zeus_trt.runtime.engines.foreign import open_foreign

        return open_foreign(bundle, backend, device, precision, trust, cuda_graph=cuda_graph)
    if backend == "onnxruntime":
        from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine

        provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
        weights = fuse(bundle, precision) if bundle.adapter else {}
        return OnnxRuntimeEngine(bundle.graph(precision), provider, device_index=device.index or 0, weights=weights)
    if backend == "aot-inductor":
        from zeus_trt.runtime.engines.aot_inductor import AotEngine

        return AotEngine.open(bundle, device, precision, cuda_graph, trust)
    from zeus_trt.runtime.engines.tensorrt import TensorRTEngine

    return TensorRTEngine.open(bundle, backend, device, precision, trust, cuda_graph=cuda_graph)
