"""Finding the engine of a bundle that this machine can run, and may, before anything is deserialised."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from zeus_trt.errors import ZeusError, escape
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import check_engine, check_place, read_file
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, EngineSpec, Target, explain
from zeus_trt.runtime.bundle.engine_trust import NOT_BUILT_HERE, TRUST_ADVICE, check_trust, find_distrust
from zeus_trt.runtime.bundle.manifest import Manifest
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


def digest_model(manifest: Manifest, backend: str, precision: str | None = None) -> tuple[str, str]:
    """Digests of a graph, and of the weights that ``backend`` builds from; without a graph, of the engine itself."""
    if manifest.foreign:
        return manifest.foreign.sha256, manifest.weights_sha256
    graph = manifest.find_graph(precision).file
    if backend == AOT_INDUCTOR:
        return manifest.files[graph].sha256, manifest.weights_sha256 + manifest.adapters_sha256
    weights = manifest.files.get(f"{graph}.data")
    return manifest.files[graph].sha256, weights.sha256 if weights else ""


def ask_engine(
    manifest: Manifest,
    backend: str,
    device: str | torch.device = "cuda",
    precision: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> EngineSpec:
    """What an engine of a bundle must be made of to run on this machine.

    Args:
        manifest: That of the bundle.
        backend: Kind of engine.
        device: Where it shall run.
        precision: Of the graph; by default the first.
        shapes: Shapes that it must take, by input; None takes any.

    Raises:
        ZeusError: The backend's library, the GPU that it needs, or the graph is missing.
    """
    graph, weights = digest_model(manifest, backend, precision)
    version = torch.__version__ if backend == AOT_INDUCTOR else import_tensorrt(backend).__version__
    processor = find_gpu(device) if backend != AOT_INDUCTOR or torch.device(device).type == "cuda" else find_cpu()
    if processor is None:
        raise ZeusError(
            f"{backend}: got no CUDA device; expected an NVIDIA GPU that torch can use. Run `zeus-trt doctor`."
        )
    profile = {name: ShapeRange(tuple(shape), tuple(shape), tuple(shape)) for name, shape in (shapes or {}).items()}
    kind = manifest.find_precision(precision)
    return EngineSpec(backend, version, kind, profile, Target((processor.sm,)), graph, weights)


def list_engines(bundle: Path, asked: EngineSpec | None = None, trust: bool | None = None) -> tuple[EngineFile, ...]:
    """Every engine of a bundle, each with why it cannot be used; nothing of it is loaded.

    Args:
        bundle: The folder.
        asked: What they must serve; None leaves that out.
        trust: As in ``check_trust``: an engine that was built elsewhere is refused, unless those are trusted.
    """
    trust = check_trust(trust)
    try:
        folders = sorted(path for path in (bundle / FOLDER).iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(_read(folder, bundle, asked, trust) for folder in folders if not folder.name.startswith("."))


def _read(folder: Path, bundle: Path, asked: EngineSpec | None, trust: bool) -> EngineFile:
    if reasons := check_place(folder / FILE_NAME, bundle):
        return EngineFile(folder, None, reasons)
    try:
        record = EngineRecord.from_json(read_file(folder / FILE_NAME, _LARGEST_RECORD))
    except OSError as error:
        return EngineFile(folder, None, (f"{FILE_NAME} cannot be read ({error.strerror})",))
    except ZeusError as error:
        return EngineFile(folder, None, (_shorten(error),))
    path = folder / record.file
    reasons = explain(record.spec, asked) if asked else ()
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
                reasons += explain(spec, ask_engine(bundle.manifest, spec.backend, _device_of(spec), spec.precision))
            except ZeusError as error:
                reasons += (str(error),)
        state = f"refused: {'; '.join(reasons)}" if reasons else "runs here"
        lines.append(escape(f"{'engine':<15}{name}, {state}"))
    itself = "" if bundle.manifest.foreign else " but the graph itself in onnxruntime"
    return "\n".join(lines) or f"{'engines':<15}none{itself}"


def _device_of(spec: EngineSpec) -> str:
    return "cpu" if spec.target.sms[0].startswith("cpu") else "cuda"


def find_engine(bundle: Path, asked: EngineSpec, trust: bool | None = None) -> EngineFile:
    """The engine that serves ``asked``, its file checked; the newest if there are several.

    Raises:
        ZeusError: As ``load_engine``.
    """

    def check(path: Path, record: EngineRecord) -> EngineFile:
        if reasons := check_engine(path, record):
            raise _refuse_all(bundle, asked, [EngineFile(path, record, reasons)])
        return EngineFile(path, record)

    return load_engine(bundle, asked, check, trust)


def load_engine(
    bundle: Path,
    asked: EngineSpec,
    load: Callable[[Path, EngineRecord], T],
    trust: bool | None = None,
    advice: str | None = None,
) -> T:
    """Loads the engine that serves ``asked``; the newest that loads if there are several.

    Args:
        bundle: The folder.
        asked: What it must serve.
        load: Loads an engine file of a record, and checks that its bytes are those of the record.
        trust: As in ``check_trust``.
        advice: What to do where no engine fits; by default to build one.

    Raises:
        ZeusError: No engine fits; the message says why each of the backend's is refused. Or the newest does not
            load, and no other does.
        UntrustedError: Those that would serve were built elsewhere.
    """
    trust = check_trust(trust)
    found = list_engines(bundle, asked, trust)
    engines = [engine for engine in found if engine.record is None or engine.record.spec.backend == asked.backend]
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
    raise faults[0] if faults else _refuse_all(bundle, asked, engines, advice)


def _check_key() -> None:
    """Raises UntrustedError for a key that cannot be used: it is the whole reason why no engine is trusted."""
    try:
        read_key()
    except ZeusError as error:
        raise UntrustedError(error) from error


def _refuse_all(bundle: Path, asked: EngineSpec, engines: Sequence[EngineFile], advice: str | None = None) -> ZeusError:
    is_distrusted = any(engine.reasons == (NOT_BUILT_HERE,) for engine in engines)
    options = "".join(f" --{name.replace('_', '-')}" for name in asked.options)
    refused = (f"{_name_folder(engine)}: {', '.join(engine.reasons)}" for engine in engines)
    advice = advice or f"Run `zeus-trt build {shlex.quote(str(bundle))} --backend {asked.backend}{options}`"
    message = (
        f"engine: got {'; '.join(refused) or f'no {asked.backend} engine'}; expected one for {asked.backend} "
        f"{asked.backend_version} on {asked.target}. {advice}{f', {TRUST_ADVICE}' if is_distrusted else ''}."
    )
    return UntrustedError(message) if is_distrusted else ZeusError(message)


def _name_folder(engine: EngineFile) -> str:
    return engine.path.parent.name if engine.record else engine.path.name


def _find_age(path: Path) -> float:
    try:
        return -path.parent.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0
