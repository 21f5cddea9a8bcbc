"""What a comparison is about: a model, the engines that run it, and the eager model beside them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.comparison import EngineFacts
from zeus_trt.evaluation.pipeline_workload import EAGER, PipelineWorkload
from zeus_trt.evaluation.timing import read_clock
from zeus_trt.evaluation.workload import SessionWorkload, Workload, check_labels, choose_guidance
from zeus_trt.export import export_bundle
from zeus_trt.export.model import Model, load_model
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.runtime import Bundle, Denoiser
from zeus_trt.runtime.bundle.manifest import FILE_NAME
from zeus_trt.runtime.engines.choose import BACKENDS, choose_engine
from zeus_trt.runtime.engines.eager import EagerEngine
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.runtime.pipelines.acceleration import find_denoisers

KNOWN_BACKENDS = (EAGER, *BACKENDS)


@dataclass(frozen=True)
class Subject:
    """A workload, and what is known about its engines.

    Args:
        name: Of the model.
        workload: What runs.
        engines: By backend; those that could not be opened too.
        asked: Backends that were asked for, ``auto`` by the name of what it became.
        module: The eager denoiser that the ``eager`` backend calls; None without one.
        denoiser_class: Name of its class, whether it is here or not; None if it is not known.
    """

    name: str
    workload: Workload
    engines: Mapping[str, EngineFacts]
    asked: tuple[str, ...]
    module: torch.nn.Module | None = None
    denoiser_class: str | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that run."""
        return tuple(name for name, facts in self.engines.items() if facts.problem is None)


def open_subject(
    path: str | Path,
    *,
    model: str | Path | None = None,
    backends: Sequence[str] = ("onnxruntime",),
    labels: Sequence[int] | None = None,
    guidance_scale: float | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> Subject:
    """Opens what is to be compared, and every engine, each timed.

    Args:
        path: A bundle, or a model folder, which is exported first.
        model: The model folder that a bundle came from: the eager reference.
        backends: Of ``KNOWN_BACKENDS``, or ``auto``. One that does not open is kept with its reason, if another does.
        labels: Class labels, one per sample, in turn.
        guidance_scale: As in ``choose_guidance``.
        seed: Sample k draws its noise from seed + k.
        folder: Where the bundle of a model folder goes.

    Raises:
        ZeusError: Neither bundle nor model, a model of other weights than the bundle, an unknown backend, ``eager``
            without a model, or no engine that opens.
    """
    check_backends(backends)
    bundle, eager = _open_bundle(Path(path), model, folder)
    check_labels(bundle, labels)
    guidance_scale = choose_guidance(bundle, guidance_scale)
    if EAGER in backends and eager is None:
        raise ZeusError("backend: got eager without the model; expected its folder. Give it with --model.")
    engines: dict[str, Denoiser] = {}
    facts: dict[str, EngineFacts] = {}
    asked: list[str] = []
    for name in dict.fromkeys([*backends, *([EAGER] if eager else [])]):
        try:
            start = read_clock()
            engine = _open(bundle, name, eager)
            seconds = read_clock() - start
        except ZeusError as error:
            facts[name] = EngineFacts(problem=str(error))
        else:
            asked += [engine.backend] if name == "auto" else []
            name = engine.backend if name == "auto" else name
            engines[name], facts[name] = engine, _describe(engine, seconds)
        asked += [name] if name in backends else []
    if not any(name in engines for name in asked):
        raise ZeusError(next(fact.problem for fact in facts.values() if fact.problem))
    workload = SessionWorkload(bundle, labels, guidance_scale, seed, engines)
    manifest = bundle.manifest
    names = tuple(dict.fromkeys(asked))
    return Subject(manifest.model, workload, facts, names, eager.denoiser if eager else None, manifest.denoiser_class)


def describe_pipeline(workload: PipelineWorkload, backends: Sequence[str] = ("auto",)) -> Subject:
    """The same for a pipeline: eager, and the engines of its bundle where it has one, each opened once to time that.

    Args:
        workload: The pipeline and its prompts.
        backends: As in ``open_subject``; ``auto`` is ``eager`` without a bundle.

    Raises:
        ZeusError: An unknown backend, or another than ``eager`` without a bundle.
    """
    check_backends(backends)
    module = next(iter(find_denoisers(workload.pipeline).values()))
    facts = {EAGER: EngineFacts({"backend": EAGER, "dtype": str(module.dtype), "device": str(module.device)})}
    asked: list[str] = []
    for name in dict.fromkeys(backends):
        if name == EAGER or (name == "auto" and workload.bundle is None):
            asked.append(EAGER)
            continue
        if workload.bundle is None:
            raise ZeusError(f"backend: got {name} for a pipeline alone; expected its bundle too. Give BUNDLE --model.")
        try:
            start = read_clock()
            with choose_engine(workload.bundle, name)[0] as engine:
                name = engine.backend
                facts[name] = _describe(engine, read_clock() - start)
        except ZeusError as error:
            facts[name] = EngineFacts(problem=str(error))
        asked.append(name)
    name = str(workload.describe()["model"])
    return Subject(Path(name).name, workload, facts, tuple(dict.fromkeys(asked)), module, type(module).__name__)


def check_backends(backends: Sequence[str]) -> None:
    """Raises ZeusError for a backend that is not one of ``KNOWN_BACKENDS``, nor ``auto``, and for none at all."""
    for name in backends or ("",):
        if name not in (*KNOWN_BACKENDS, "auto"):
            raise ZeusError(f"backend: got {name!r}; expected some of {', '.join(KNOWN_BACKENDS)}. Choose among these.")


def _open(bundle: Bundle, backend: str, eager: Model | None) -> Engine:
    if backend == EAGER and eager:
        return EagerEngine(eager.denoiser, bundle.manifest.inputs)
    return choose_engine(bundle, backend)[0]


def _open_bundle(path: Path, model: str | Path | None, folder: Path | None) -> tuple[Bundle, Model | None]:
    if (path / FILE_NAME).is_file() or not path.is_dir():
        bundle = Bundle.open(path)
        eager = load_model(model) if model else None
    else:
        if model:
            raise ZeusError(f"model: got {model} beside the model folder {path}; expected one of them. Leave it out.")
        eager = load_model(path)
        bundle = _export(path, eager, folder)
    if eager and eager.weights_sha256 != bundle.manifest.weights_sha256:
        raise ZeusError(
            f"model: got {eager.name} with other weights than the bundle's; expected the model that was exported. "
            "Export it again, or give another folder."
        )
    return bundle, eager


def _export(path: Path, eager: Model, folder: Path | None) -> Bundle:
    if folder is None:
        raise ZeusError(f"output: got none for the model folder {path}; expected a place for its bundle. Give -o.")
    target = folder / "bundle"
    versions = {name: find_version(name) or "missing" for name in LIBRARIES}
    with contextlib.suppress(ZeusError):  # none, or a damaged one
        found = Bundle.open(target)
        if found.manifest.weights_sha256 == eager.weights_sha256 and found.manifest.versions == versions:
            return found
    return export_bundle(path, target, overwrite=True)


def _describe(engine: Engine, seconds: float) -> EngineFacts:
    info, built = engine.info, engine.record
    identity = {
        "backend": info.backend,
        "precision": info.precision,
        "device": str(info.device),
        "bytes": info.bytes,
        "key": built.key if built else None,
    }
    return EngineFacts(identity, seconds, built.build_seconds if built else None)
