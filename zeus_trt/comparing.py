"""What `zeus-trt compare` does."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation import compare as comparisons
from zeus_trt.evaluation.cells import check_predictors, make_cells, read_plan
from zeus_trt.evaluation.compare import make_folder
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.peers import Peer
from zeus_trt.evaluation.quality import METRICS, check_metrics
from zeus_trt.evaluation.subject import EAGER, Subject, check_backends, open_subject
from zeus_trt.export.description import digest_weights
from zeus_trt.export.loading import BARE, BUNDLE, PIPELINE, find_kind, load_pipeline
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.open_model import open_model
from zeus_trt.repeat import write_command
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.pipelines.denoisers import find_denoisers
from zeus_trt.runtime.request import check_run
from zeus_trt.zeus_graph import Plan


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and how.

    Args:
        model: The model folder or the pipeline that a bundle came from: the eager reference.
        backends: As in ``open_subject``; ``eager`` is added where there are peers.
        ratios: As in ``make_cells``, and so on to ``solvers``; plans as ``read_plan`` reads them.
        peers: As ``Peer.parse`` reads them.
        metrics: Of ``METRICS``; all by default.
        prompts: A file with a prompt per line, for pipelines.
        labels: Class labels, one per sample, in turn.
        num_images: Samples 0 .. num_images - 1, run as one batch.
        guidance_scale: As in ``ModelOptions``; 1 turns it off.
        seed: Sample k draws its noise from seed + k.
        mode: As in ``Session.generate``; a pipeline has its own loop.
        rounds: Timed runs of each cell.
        output: Folder for the report, and for the bundle of a model folder; a report there is resumed.

    Raises:
        ZeusError: A number out of range, or an unknown peer, metric or plan.
    """

    model: str | os.PathLike | None = None
    backends: Sequence[str] = ("auto",)
    ratios: Sequence[int] = (0, 2, 3, 4)
    plans: Sequence[str | Plan] = ()
    predictors: Sequence[str] | None = None
    steps: Sequence[int] = (50,)
    solvers: Sequence[str] = ("default",)
    peers: Sequence[str] = ()
    metrics: Sequence[str] | None = None
    prompts: str | os.PathLike | None = None
    labels: Sequence[int] | None = None
    num_images: int = 8
    guidance_scale: float | None = None
    seed: int = 0
    mode: str | None = None
    rounds: int = 3
    output: str | os.PathLike | None = None


def compare(path: str | os.PathLike, *, on_run: Callable[[int], None] | None = None, **options: Any) -> Comparison:
    """Compares eager, compiled and skipped runs of a bundle, a model folder or a pipeline: time, quality, memory.

    Args:
        path: A bundle, a model folder, or a diffusers pipeline, as a folder or an id of the hub.
        on_run: Called with the number of full steps after every run.
        **options: As in ``CompareOptions``.

    Raises:
        ZeusError: An unknown backend, solver or predictor, and as ``open_model`` and ``open_subject``.
    """
    asked = CompareOptions(**options)
    peers = [peer for text in asked.peers for peer in Peer.parse(text)]
    metrics = METRICS if asked.metrics is None else tuple(asked.metrics)
    check_metrics(metrics)
    for count in asked.steps:
        check_run(count, asked.num_images, asked.seed)
    plans = [read_plan(text) for text in asked.plans]
    check_predictors(asked.predictors or (), plans)
    output = None if asked.output is None else Path(asked.output)
    if output is not None:
        make_folder(output)
    backends = (*asked.backends, EAGER) if peers and EAGER not in asked.backends else tuple(asked.backends)
    subject = open_compared(
        path, output, asked.model, backends, prompts=Path(asked.prompts) if asked.prompts else (),
        labels=asked.labels, guidance_scale=asked.guidance_scale, seed=asked.seed, mode=asked.mode,
    )  # fmt: skip
    cells = make_cells(
        subject.workload, backends=subject.asked, ratios=asked.ratios, plans=plans, predictors=asked.predictors,
        steps=asked.steps, solvers=asked.solvers, peers=peers, mode=asked.mode or "auto",
    )  # fmt: skip
    return comparisons.compare(
        subject, cells, num_images=asked.num_images, rounds=asked.rounds, metrics=metrics, output=output,
        command=write_command("compare", CompareOptions, path, **vars(asked)), on_run=on_run,
    )  # fmt: skip


def open_compared(
    path: str | os.PathLike,
    output: Path | None = None,
    model: str | os.PathLike | None = None,
    backends: Sequence[str] = ("auto",),
    **options: Any,
) -> Subject:
    """Opens what is compared: a bundle alone or with its eager model, a bare model folder, or a pipeline.

    Args:
        path: A bundle, a bare model folder, which is exported first, or a pipeline.
        output: Folder for the bundle of a bare model folder, which is kept there.
        model: The model folder or the pipeline that a bundle came from.
        backends: As in ``open_subject``.
        **options: As in ``ModelOptions``.

    Raises:
        ZeusError: Neither bundle nor model, and as ``open_model`` and ``open_subject``.
    """
    check_backends(backends)
    path, kind = os.fspath(path), find_kind(os.fspath(path))
    if model is not None and kind != BUNDLE:
        raise ZeusError(f"model: got {model} beside {path}, which is no bundle; expected one of them. Leave it out.")
    source = path if model is None else os.fspath(model)
    if find_kind(source) == PIPELINE:
        return open_subject(open_model(source, bundle=None if model is None else Path(path), **options), backends)
    module = None
    if kind == BARE or model is not None:
        module = next(iter(find_denoisers(load_pipeline(source)).values()))
    bundle = _export(path, module, output) if kind == BARE else Path(path)
    return open_subject(open_model(bundle, **options), backends, module)


def _export(path: str, module: Any, output: Path | None) -> Path:
    """The bundle of a bare model folder, which is made unless it is there, of the same weights and versions."""
    from zeus_trt.export import export_model

    if output is None:
        raise ZeusError(f"output: got nothing for the model folder {path}; expected a place for its bundle. Give one.")
    target = output / "bundle"
    versions = {name: find_version(name) or "missing" for name in LIBRARIES}
    with contextlib.suppress(ZeusError):  # it is missing, or damaged
        found = Bundle.open(target).manifest
        if found.weights_sha256 == digest_weights(module) and found.versions == versions:
            return target
    return export_model(path, target, overwrite=True).path
