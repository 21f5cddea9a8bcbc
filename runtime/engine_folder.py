"""Finding the engine of a bundle that this machine can run, before anything is deserialised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.files import digest_file
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.engine_record import FILE_NAME, EngineRecord
from zeus_trt.runtime.hardware import find_cpu, find_gpu
from zeus_trt.runtime.manifest import ONNX_FILE, Manifest
from zeus_trt.runtime.tensorrt_module import import_tensorrt

FOLDER = "engines"
AOT_INDUCTOR = "aot-inductor"


@dataclass(frozen=True)
class Needs:
    """What this machine and this bundle ask of an engine.

    Args:
        backend: Which kind.
        backend_version: Version of the library that will load it.
        sm: Compute capability of the GPU, such as ``sm_90``, or ``cpu-avx2``.
        graph_sha256: Digest of the bundle's graph.
        weights_sha256: Digest of its weights.
        precision: The one asked for; None takes any.
        shapes: Shapes that it must take, by input; empty takes any.
    """

    backend: str
    backend_version: str
    sm: str
    graph_sha256: str
    weights_sha256: str
    precision: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, backend: str, device: str | torch.device = "cuda", **asked: Any) -> "Needs":
        """What a bundle asks on this machine; ``asked`` is ``precision`` and ``shapes``.

        Raises:
            ZeusError: The backend's library, or the GPU that it needs, is missing.
        """
        graph, weights = digest_model(manifest, backend)
        version = torch.__version__ if backend == AOT_INDUCTOR else import_tensorrt(backend).__version__
        processor = find_gpu(device) if backend != AOT_INDUCTOR or torch.device(device).type == "cuda" else find_cpu()
        if processor is None:
            raise ZeusError(
                f"{backend}: got no CUDA device; expected an NVIDIA GPU that torch can use. Run `zeus-trt doctor`."
            )
        return cls(backend, version, processor.sm, graph, weights, **asked)


@dataclass(frozen=True)
class EngineFile:
    """An engine of a bundle.

    Args:
        path: The engine file.
        record: What it was made of.
        reasons: Why it cannot be used; nothing if it can.
    """

    path: Path
    record: EngineRecord
    reasons: tuple[str, ...] = ()


def digest_model(manifest: Manifest, backend: str) -> tuple[str, str]:
    """Digests of the graph, and of the weights that ``backend`` builds from."""
    weights = manifest.files.get(f"{ONNX_FILE}.data")
    onnx_weights = weights.sha256 if weights else ""
    return manifest.files[ONNX_FILE].sha256, manifest.weights_sha256 if backend == AOT_INDUCTOR else onnx_weights


def list_engines(bundle: Path, needs: Needs | None = None) -> tuple[EngineFile, ...]:
    """Every engine of a bundle, each with why it cannot be used; a record that does not read is left out."""
    engines = []
    for file in sorted((bundle / FOLDER).glob(f"*/{FILE_NAME}")):
        try:
            record = EngineRecord.from_json(file.read_text(encoding="utf-8"))
        except (ZeusError, OSError, UnicodeDecodeError):
            continue
        engines.append(EngineFile(file.parent / record.file, record, refuse(record, needs) if needs else ()))
    return tuple(engines)


def describe_engines(bundle: Bundle) -> str:
    """The engines of a bundle for a person, each with why it cannot run here, if it cannot."""
    lines = []
    for engine in list_engines(bundle.path):
        spec = engine.record.spec
        try:
            reasons = refuse(engine.record, Needs.of(bundle.manifest, spec.backend, _device_of(engine.record)))
        except ZeusError as error:
            reasons = (str(error),)
        state = f"refused: {'; '.join(reasons)}" if reasons else "runs here"
        lines.append(f"{'engine':<15}{spec.backend} {spec.precision} for {spec.target}, {state}")
    return "\n".join(lines) or f"{'engines':<15}none but the graph itself in onnxruntime"


def _device_of(record: EngineRecord) -> str:
    return "cpu" if record.spec.target.sms[0].startswith("cpu") else "cuda"


def find_engine(bundle: Path, needs: Needs) -> EngineFile:
    """The engine that serves ``needs``, its file checked; the newest if there are several.

    Raises:
        ZeusError: There is none; the message says why each of those of the backend is refused.
    """
    engines = [engine for engine in list_engines(bundle, needs) if engine.record.spec.backend == needs.backend]
    refused = []
    for engine in sorted(engines, key=lambda engine: engine.path.parent.stat().st_mtime, reverse=True):
        reasons = engine.reasons or check_file(engine)
        if not reasons:
            return engine
        refused.append(f"{engine.record.key}: {', '.join(reasons)}")
    found = "; ".join(refused) or f"no {needs.backend} engine"
    raise ZeusError(
        f"engine: got {found}; expected one for {needs.backend} {needs.backend_version} on {needs.sm}. "
        f"Run `zeus-trt build {bundle} --backend {needs.backend}`."
    )


def refuse(record: EngineRecord, needs: Needs) -> tuple[str, ...]:
    """Why an engine cannot serve here, a field at a time; nothing if it can."""
    spec = record.spec
    reasons = []
    if spec.backend != needs.backend:
        reasons.append(f"built by {spec.backend}, asked for {needs.backend}")
    elif not _loads(record, needs.backend_version):
        reasons.append(f"built by {spec.backend} {spec.backend_version}, this one is {needs.backend_version}")
    if not _runs(record, needs.sm):
        this = "GPU" if needs.sm.startswith("sm_") else "CPU"
        reasons.append(f"built for {', '.join(spec.target.sms)}, this {this} is {needs.sm}")
    if spec.graph_sha256 != needs.graph_sha256:
        reasons.append("built from another graph than the bundle's")
    if spec.weights_sha256 != needs.weights_sha256:
        reasons.append("built from other weights than the bundle's")
    if needs.precision and spec.precision != needs.precision:
        reasons.append(f"built in {spec.precision}, asked for {needs.precision}")
    for name, shape in needs.shapes.items():
        if name not in spec.profile or not spec.profile[name].takes(shape):
            reasons.append(
                f"built for {name} {spec.profile.get(name, 'absent')}, asked for {'x'.join(map(str, shape))}"
            )
    return tuple(reasons)


def check_file(engine: EngineFile) -> tuple[str, ...]:
    """Why the engine file cannot be trusted: missing, or other bytes than were built."""
    if not engine.path.is_file():
        return (f"its file {engine.record.file} is missing",)
    if engine.path.stat().st_size != engine.record.size or digest_file(engine.path) != engine.record.sha256:
        return (f"its file {engine.record.file} was changed since it was built",)
    return ()


def _loads(record: EngineRecord, version: str) -> bool:
    """Engines are tied to the exact version of their library, unless built to be loaded by later ones of its major."""
    built, here = _split(record.spec.backend_version), _split(version)
    if record.spec.options.get("version_compatible"):
        return built[:1] == here[:1] and built <= here
    return record.spec.backend_version == version


def _runs(record: EngineRecord, sm: str) -> bool:
    if record.spec.options.get("hardware_compatible") and sm.startswith("sm_"):
        return int(sm.removeprefix("sm_")) >= 80  # TensorRT's AMPERE_PLUS
    return sm in record.spec.target.sms


def _split(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())
