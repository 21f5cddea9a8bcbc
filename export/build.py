"""An engine of a bundle: built where it must be, reused where it can be."""

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt import __version__
from zeus_trt.errors import ZeusError
from zeus_trt.export.aot_inductor import build_package, check_program
from zeus_trt.export.guard import kill_with_parent
from zeus_trt.export.profile import SizeRange, make_profile
from zeus_trt.export.tensorrt import Progress, TensorRTOptions, build_tensorrt, check_options
from zeus_trt.files import digest_file, write_folder_atomically
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import check_engine
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, FOLDER, EngineFile, digest_model, list_engines
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, EngineSpec, Target, explain
from zeus_trt.runtime.bundle.engine_trust import sign
from zeus_trt.runtime.bundle.precision import QUANTIZED, Precision
from zeus_trt.runtime.bundle.signing_key import find_data_folder, make_key
from zeus_trt.runtime.engines.hardware import find_cpu, find_gpu
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

BACKENDS = ("tensorrt", "tensorrt-rtx", AOT_INDUCTOR)
_DEFAULTS = TensorRTOptions()
_FIRST_FP8 = 89


@dataclass(frozen=True)
class BuildOptions:
    """What to build, where a backend leaves a choice.

    Args:
        precision: That of the graph to build from; by default the first of the bundle.
        gpu: What to build for, such as ``sm_89``; several for TensorRT-RTX. By default the GPU that is here, and
            the CPU for AOTInductor.
        ranges: Sizes to build for, per symbol of the manifest, as in ``make_profile``.
        guidance: Whether classifier-free guidance may double the batch, as in ``make_profile``.
        options: For TensorRT and TensorRT-RTX.
    """

    precision: str | None = None
    gpu: str | Sequence[str] | None = None
    ranges: Mapping[str, SizeRange] | None = None
    guidance: bool | None = None
    options: TensorRTOptions = _DEFAULTS


def build_engine(
    bundle: str | Path | Bundle,
    backend: str,
    *,
    trace: Callable[[], torch.export.ExportedProgram] | None = None,
    on_progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **asked: Any,
) -> EngineRecord:
    """Makes sure that a bundle has an engine: builds it, unless there is one that differs in nothing.

    Args:
        bundle: A folder written by ``zeus-trt export``. Its manifest stays as it is.
        backend: ``tensorrt``, ``tensorrt-rtx`` or ``aot-inductor``.
        trace: Gives the denoiser as an exported program, inputs in the manifest's order; for AOTInductor.
        on_progress: Called with what the builder is at, and how far it has come; what it raises cancels the build.
        say: Called with a line: why an engine is built, or that none is.
        **asked: As in ``BuildOptions``.

    Raises:
        ZeusError: Something is asked that the backend or this machine cannot do, or the build fails.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    spec = plan_engine(bundle, backend, **asked)
    folder = bundle.path / FOLDER / spec.key
    reasons = find_reasons(bundle, spec)
    if say:
        say(f"builds {backend}: {'; '.join(reasons)}" if reasons else f"reuses {backend}: {folder}")
    built = _find_built(bundle, spec)
    if built and built.record and not reasons:
        return built.record
    key = make_key()
    try:
        with write_folder_atomically(folder, overwrite=True) as fresh:
            start = time.perf_counter()
            file = fresh / _name_file(backend)
            if backend == AOT_INDUCTOR:
                _build_aot(spec, bundle, trace, file)
            else:
                # Not in the bundle: TensorRT parses it, and a bundle may be from anywhere.
                cache = find_data_folder() / f"timing-{spec.backend_version}-{spec.target.sms[0]}.cache"
                build_tensorrt(bundle.graph(spec.precision), spec, file, cache, on_progress)
            seconds = round(time.perf_counter() - start, 2)
            record = sign(EngineRecord(spec, file.name, file.stat().st_size, digest_file(file), seconds), key)
            (fresh / FILE_NAME).write_text(record.to_json(), encoding="utf-8")
    finally:
        with contextlib.suppress(OSError):  # it goes only if it is empty
            folder.parent.rmdir()
    return record


def plan_engine(bundle: Bundle, backend: str, **asked: Any) -> EngineSpec:
    """What ``build_engine`` would build, without building it.

    Raises:
        ZeusError: As ``build_engine``.
    """
    options = BuildOptions(**asked)
    precision = bundle.manifest.find_graph(options.precision).precision
    version, target = check_backend(backend, options.gpu, options.options)
    check_precision(precision, backend, target.sms)
    graph, weights = digest_model(bundle.manifest, backend, options.precision)
    return EngineSpec(
        backend=backend,
        backend_version=version,
        precision=precision,
        profile=make_profile(bundle.manifest, options.ranges, options.guidance),
        target=target,
        graph_sha256=graph,
        weights_sha256=weights,
        options={} if backend == AOT_INDUCTOR else asdict(options.options),
        exporter_version=__version__,
    )


def check_backend(
    backend: str, gpu: str | Sequence[str] | None = None, options: TensorRTOptions = _DEFAULTS
) -> tuple[str, Target]:
    """Version of the library that builds, and what it builds for; the bundle is not read.

    Raises:
        ZeusError: No such backend, its library is missing, or it has not the options or the GPU.
    """
    if backend not in BACKENDS:
        raise ZeusError(f"backend: got {backend}; expected one of {', '.join(BACKENDS)}. Choose one of them.")
    if backend == AOT_INDUCTOR:
        if options != _DEFAULTS:
            raise ZeusError("options: got some for aot-inductor; expected none, which are TensorRT's. Leave them out.")
        return torch.__version__, choose_target(backend, gpu)
    check_options(backend, options)
    return import_tensorrt(backend).__version__, choose_target(backend, gpu)


def check_precision(precision: Precision, backend: str, sms: Sequence[str] = ()) -> None:
    """Refuses a quantized graph where nothing can compute it.

    Raises:
        ZeusError: An AOTInductor package of it, or FP8 for a GPU before Ada.
    """
    if backend == AOT_INDUCTOR and precision in QUANTIZED:
        raise ZeusError(
            f"precision: got {precision} for aot-inductor, which builds from the model, not from a graph; expected a "
            "precision of an export. Choose tensorrt or tensorrt-rtx."
        )
    old = [sm for sm in sms if int(sm.removeprefix("sm_")) < _FIRST_FP8] if precision == Precision.FP8 else []
    if old:
        raise ZeusError(
            f"gpu: got {old[0]} for an fp8 graph; expected sm_{_FIRST_FP8} or later, which compute in FP8. "
            "Build the int8 graph, or name another GPU."
        )


def find_reasons(bundle: Bundle, spec: EngineSpec) -> tuple[str, ...]:
    """Why ``spec`` has to be built, against the engine that is nearest to it; nothing if the bundle has it."""
    if built := _find_built(bundle, spec):
        return built.reasons or (check_engine(built.path, built.record) if built.record else ())
    specs = [engine.record.spec for engine in list_engines(bundle.path) if engine.record]
    others = [explain(other, spec) for other in specs if other.backend == spec.backend and other != spec]
    return min(others, key=len, default=("the bundle has none",))


def _find_built(bundle: Bundle, spec: EngineSpec) -> EngineFile | None:
    """What is in the folder of ``spec``, whether it can be used or not."""
    for engine in list_engines(bundle.path):
        if spec.key == (engine.path.parent.name if engine.record else engine.path.name):
            return engine
    return None


def choose_target(backend: str, gpu: str | Sequence[str] | None) -> Target:
    """What to build for.

    Raises:
        ZeusError: No such GPU, or one that this machine would have to have.
    """
    asked = tuple(_read_sm(name) for name in ([gpu] if isinstance(gpu, str) else gpu or ()))
    if backend == "tensorrt-rtx" and asked:
        known = [name for name in import_tensorrt(backend).ComputeCapability.__members__ if name.startswith("SM")]
        if missing := [sm for sm in asked if sm.replace("_", "").upper() not in known]:
            raise ZeusError(
                f"gpu: got {missing[0]}; expected one of {', '.join(f'sm_{name[2:]}' for name in known)} for "
                "tensorrt-rtx. Choose one of them, or another backend."
            )
        return Target(asked)
    if backend == AOT_INDUCTOR and not asked:
        return Target((find_cpu().sm,))
    here = find_gpu()
    if here is None or (asked and asked != (here.sm,)):
        advice = "Name one with --gpu sm_89." if backend == "tensorrt-rtx" else "Build on the machine that has it."
        raise ZeusError(
            f"gpu: got {', '.join(asked) or 'none'} on a machine with {here.sm if here else 'no GPU'}; expected the "
            f"GPU that {backend} builds for to be here. {advice}"
        )
    return Target((here.sm,), here.name)


def _build_aot(
    spec: EngineSpec, bundle: Bundle, trace: Callable[[], torch.export.ExportedProgram] | None, file: Path
) -> None:
    if trace is None:
        raise ZeusError(
            "aot-inductor: got a bundle alone; expected the model as well, since a graph cannot replace it. "
            "Give the model that the bundle was exported from."
        )
    program = trace()
    check_program(program, spec, bundle.manifest.inputs)
    with kill_with_parent():
        build_package(program, file)


def _name_file(backend: str) -> str:
    return "denoiser.pt2" if backend == AOT_INDUCTOR else "denoiser.engine"


def _read_sm(text: str) -> str:
    """``sm_89`` from ``sm_89``, ``SM89``, ``sm89`` or ``8.9``."""
    found = re.fullmatch(r"(?:sm_?)?(\d{2,3})", text.strip().lower().replace(".", ""))
    if not found:
        raise ZeusError(f"gpu: got {text!r}; expected a compute capability such as sm_89. Write it so.")
    return f"sm_{found[1]}"
