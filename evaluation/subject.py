"""What a comparison is about: a model, the engines that run it, and the eager model beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.comparison import EngineFacts
from zeus_trt.evaluation.pipeline_workload import EAGER, PipelineWorkload
from zeus_trt.evaluation.timing import read_clock
from zeus_trt.evaluation.workload import SessionWorkload, Workload
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.engines.choose import BACKENDS, choose_engine
from zeus_trt.runtime.engines.eager import EagerEngine
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.runtime.pipelines.acceleration import find_denoisers
from zeus_trt.runtime.pipelines.weights_digest import digest_weights

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
    workload: SessionWorkload | PipelineWorkload,
    backends: Sequence[str] = ("auto",),
    module: torch.nn.Module | None = None,
) -> Subject:
    """Opens every engine of a workload, each timed.

    Args:
        workload: The model and its samples.
        backends: Of ``KNOWN_BACKENDS``, or ``auto``: the bundle's best, ``eager`` without a bundle; with a precision
            behind it, ``onnxruntime:int8``, of that graph. One that does not open is kept with its reason, if another
            does.
        module: The eager denoiser that a bundle was exported from: the reference. A pipeline has its own.

    Raises:
        ZeusError: An unknown backend, ``eager`` without a module, another without a bundle, a module of other weights
            than the bundle, or no engine that opens.
    """
    check_backends(backends)
    bundle = workload.bundle
    if isinstance(workload, PipelineWorkload):
        module = next(iter(find_denoisers(workload.pipeline).values()))
    elif module is not None and not _is_of(workload.bundle.manifest, module):
        raise ZeusError(
            "model: got one with other weights than the bundle's; expected the model that was exported. Export it "
            "again, or give another one."
        )
    names = tuple(EAGER if name == "auto" and bundle is None else name for name in backends)
    if EAGER in names and module is None:
        raise ZeusError("backend: got eager for a bundle alone; expected the model too. Give the eager model with it.")
    if bundle is None and (others := [name for name in names if name != EAGER]):
        raise ZeusError(f"backend: got {others[0]} for a pipeline alone; expected its bundle too. Give both.")
    facts: dict[str, EngineFacts] = {}
    asked: list[str] = []
    for name in dict.fromkeys([*names, *([EAGER] if module is not None else [])]):
        opened, facts_of_it = _open_timed(workload, name, module)
        facts[opened] = facts_of_it
        asked += [opened] if name in names else []
    if not any(facts[name].problem is None for name in asked):
        raise ZeusError(next(fact.problem for fact in facts.values() if fact.problem))
    found = bundle.manifest.denoiser_class if bundle else type(module).__name__
    name = Path(str(workload.describe()["model"])).name
    return Subject(name, workload, facts, tuple(dict.fromkeys(asked)), module, found)


def _open_timed(workload: SessionWorkload | PipelineWorkload, name: str, module: Any) -> tuple[str, EngineFacts]:
    """The name of an engine and its facts. A session keeps the engine; a pipeline opens it again when it runs."""
    if name == EAGER and isinstance(workload, PipelineWorkload):
        return name, EngineFacts({"backend": EAGER, "dtype": str(module.dtype), "device": str(module.device)})
    assert workload.bundle
    try:
        start = read_clock()
        engine: Engine
        if name == EAGER:
            engine = EagerEngine(module, workload.bundle.manifest.inputs)
        else:
            engine = choose_engine(workload.bundle, name)[0]
        facts = _describe(engine, read_clock() - start)
    except ZeusError as error:
        return name, EngineFacts(problem=str(error))
    if isinstance(workload, SessionWorkload):
        workload.engines[engine.backend] = engine
    else:
        engine.close()
    return engine.backend, facts


def check_backends(backends: Sequence[str]) -> None:
    """Raises ZeusError for a backend that is not one of ``KNOWN_BACKENDS``, nor ``auto``, and for none at all.

    The precision of a graph may follow, ``onnxruntime:int8``; the eager model has no graph.
    """
    for name in backends or ("",):
        kind, _, precision = name.partition(":")
        if kind not in (*KNOWN_BACKENDS, "auto") or (
            precision and (kind == EAGER or precision not in tuple(Precision))
        ):
            raise ZeusError(
                f"backend: got {name!r}; expected some of {', '.join(KNOWN_BACKENDS)}, "
                "also as onnxruntime:int8. Choose among these."
            )


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


def _is_of(manifest: Manifest, module: torch.nn.Module) -> bool:
    return digest_weights(module, manifest.find_graph())[0] == manifest.weights_sha256
