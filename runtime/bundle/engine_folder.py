"""Finding the engine of a bundle that this machine can run, and may, before anything is deserialised."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from zeus_trt.errors import ZeusError, escape
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import check_engine, check_place, read_file
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord
from zeus_trt.runtime.bundle.engine_trust import NOT_BUILT_HERE, TRUST_ADVICE, check_trust, find_distrust
from zeus_trt.runtime.bundle.manifest import ONNX_FILE, Manifest
from zeus_trt.runtime.bundle.signing_key import read_key
from zeus_trt.runtime.engines.hardware import find_cpu, find_gpu
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

FOLDER = "engines"
AOT_INDUCTOR = "aot-inductor"

_LARGEST_RECORD = 1 << 20
T = TypeVar("T")


class UntrustedError(ZeusError):
    """The engines that would serve were built elsewhere, or nobody can say where."""


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
        path: The engine file; the engine's folder where the record is broken.
        record: What it was made of; None where the record is broken.
        reasons: Why it cannot be used; nothing if it can.
    """

    path: Path
    record: EngineRecord | None
    reasons: tuple[str, ...] = ()


def digest_model(manifest: Manifest, backend: str) -> tuple[str, str]:
    """Digests of the graph, and of the weights that ``backend`` builds from."""
    weights = manifest.files.get(f"{ONNX_FILE}.data")
    onnx_weights = weights.sha256 if weights else ""
    return manifest.files[ONNX_FILE].sha256, manifest.weights_sha256 if backend == AOT_INDUCTOR else onnx_weights


def list_engines(bundle: Path, needs: Needs | None = None, trust: bool | None = None) -> tuple[EngineFile, ...]:
    """Every engine of a bundle, each with why it cannot be used; nothing of it is loaded.

    Args:
        bundle: The folder.
        needs: What they must serve; None leaves that out.
        trust: As in ``check_trust``: an engine that was built elsewhere is refused, unless those are trusted.
    """
    trust = check_trust(trust)
    try:
        folders = sorted(path for path in (bundle / FOLDER).iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(_read(folder, bundle, needs, trust) for folder in folders if not folder.name.startswith("."))


def _read(folder: Path, bundle: Path, needs: Needs | None, trust: bool) -> EngineFile:
    if reasons := check_place(folder / FILE_NAME, bundle):
        return EngineFile(folder, None, reasons)
    try:
        record = EngineRecord.from_json(read_file(folder / FILE_NAME, _LARGEST_RECORD))
    except OSError as error:
        return EngineFile(folder, None, (f"{FILE_NAME} cannot be read ({error.strerror})",))
    except ZeusError as error:
        return EngineFile(folder, None, (_shorten(error),))
    path = folder / record.file
    reasons = refuse(record, needs) if needs else ()
    if folder.name != record.key:
        reasons += (f"its record is that of {record.key}",)
    try:
        reasons += find_distrust(record, trust)
    except ZeusError as error:
        reasons += (_shorten(error),)
    return EngineFile(path, record, reasons + check_place(path, bundle))


def _shorten(error: ZeusError) -> str:
    """What was got, without the advice."""
    return str(error).partition("; expected")[0]


def describe_engines(bundle: Bundle, trust: bool | None = None) -> str:
    """The engines of a bundle for a person, each with why it cannot run here, if it cannot."""
    lines = []
    for engine in list_engines(bundle.path, trust=trust):
        reasons = engine.reasons
        if engine.record is None:
            name = engine.path.name
        else:
            spec = engine.record.spec
            name = f"{spec.backend} {spec.precision} for {spec.target}"
            try:
                reasons += refuse(engine.record, Needs.of(bundle.manifest, spec.backend, _device_of(engine.record)))
            except ZeusError as error:
                reasons += (str(error),)
        state = f"refused: {'; '.join(reasons)}" if reasons else "runs here"
        lines.append(escape(f"{'engine':<15}{name}, {state}"))
    return "\n".join(lines) or f"{'engines':<15}none but the graph itself in onnxruntime"


def _device_of(record: EngineRecord) -> str:
    return "cpu" if record.spec.target.sms[0].startswith("cpu") else "cuda"


def find_engine(bundle: Path, needs: Needs, trust: bool | None = None) -> EngineFile:
    """The engine that serves ``needs``, its file checked; the newest if there are several.

    Raises:
        ZeusError: As ``load_engine``.
    """

    def check(path: Path, record: EngineRecord) -> EngineFile:
        if reasons := check_engine(path, record):
            raise _refuse_all(bundle, needs, [EngineFile(path, record, reasons)])
        return EngineFile(path, record)

    return load_engine(bundle, needs, check, trust)


def load_engine(bundle: Path, needs: Needs, load: Callable[[Path, EngineRecord], T], trust: bool | None = None) -> T:
    """Loads the engine that serves ``needs``; the newest that loads if there are several.

    Args:
        bundle: The folder.
        needs: What it must serve.
        load: Loads an engine file of a record, and checks that its bytes are those of the record.
        trust: As in ``check_trust``.

    Raises:
        ZeusError: No engine fits; the message says why each of the backend's is refused. Or the newest does not
            load, and no other does.
        UntrustedError: Those that would serve were built elsewhere.
    """
    trust = check_trust(trust)
    found = list_engines(bundle, needs, trust)
    engines = [engine for engine in found if engine.record is None or engine.record.spec.backend == needs.backend]
    if engines and not trust:
        _check_key()
    faults = []
    for engine in sorted(engines, key=lambda engine: _find_age(engine.path)):
        if engine.record is None or engine.reasons:
            continue
        try:
            return load(engine.path, engine.record)
        except ZeusError as error:
            faults.append(error)
    raise faults[0] if faults else _refuse_all(bundle, needs, engines)


def _check_key() -> None:
    """Raises UntrustedError for a key that cannot be used: it is the whole reason why no engine is trusted."""
    try:
        read_key()
    except ZeusError as error:
        raise UntrustedError(error) from error


def _refuse_all(bundle: Path, needs: Needs, engines: Sequence[EngineFile]) -> ZeusError:
    is_distrusted = any(engine.reasons == (NOT_BUILT_HERE,) for engine in engines)
    refused = (f"{_name_folder(engine)}: {', '.join(engine.reasons)}" for engine in engines)
    message = (
        f"engine: got {'; '.join(refused) or f'no {needs.backend} engine'}; expected one for {needs.backend} "
        f"{needs.backend_version} on {needs.sm}. Run `zeus-trt build {shlex.quote(str(bundle))} "
        f"--backend {needs.backend}`{f', {TRUST_ADVICE}' if is_distrusted else ''}."
    )
    return UntrustedError(message) if is_distrusted else ZeusError(message)


def _name_folder(engine: EngineFile) -> str:
    return engine.path.parent.name if engine.record else engine.path.name


def _find_age(path: Path) -> float:
    try:
        return -path.parent.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0


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
