"""What `zeus-trt compare` does."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation import compare as comparisons
from zeus_trt.evaluation.compare import make_folder
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.peer import Peer
from zeus_trt.evaluation.subject import EAGER, Subject, check_backends, open_subject
from zeus_trt.evaluation.variants import Grid, NamedPlan, make_variants
from zeus_trt.export.loading import BARE, BUNDLE, PIPELINE, find_kind, load_pipeline
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.open_model import ModelOptions, open_model
from zeus_trt.options import split_options
from zeus_trt.repeat import write_command
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.pipelines.denoisers import find_denoisers
from zeus_trt.runtime.pipelines.weights_digest import digest_weights
from zeus_trt.runtime.request import check_run
from zeus_trt.runtime.scheduler import name_solvers
from zeus_trt.zeus_graph import Plan


def compare(
    path: str | os.PathLike,
    *,
    model: str | os.PathLike | None = None,
    backends: Sequence[str] = ("auto",),
    plans: Sequence[str | Plan] = (),
    peers: Sequence[str] = (),
    output: str | os.PathLike | None = None,
    on_run: Callable[[int], None] | None = None,
    **options: Any,
) -> Comparison:
    """Compares eager, compiled and skipped runs of a bundle, a model folder or a pipeline: time, quality, memory.

    Args:
        path: A bundle, a model folder, or a diffusers pipeline, as a folder or an id of the hub.
        model: The model folder or the pipeline that a bundle came from: the eager reference.
        backends: As in ``open_subject``; ``eager`` is added where there are peers.
        plans: As ``NamedPlan.read`` reads them.
        peers: As ``Peer.parse`` reads them.
        output: Folder for the report, and for the bundle of a model folder; a report there is resumed.
        on_run: Called with the number of full steps after every run.
        **options: Of ``Grid``, ``MeasureOptions`` and ``ModelOptions``: ``ratios``, ``steps``, ``num_images``,
            ``metrics``, ``labels``, ``guidance_scale`` ...; ``prompts`` is a file with a prompt per line.

    Raises:
        ZeusError: An unknown backend, peer, metric, solver or predictor, and as ``open_model`` and ``open_subject``.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if "solvers" in options:
        options["solvers"] = name_solvers(options["solvers"])
    if "prompts" in options:
        options["prompts"] = Path(options["prompts"])
    grid_options, measured, asked = split_options(options, Grid, MeasureOptions, ModelOptions)
    given = {"model": model, "backends": backends, **options, "plans": plans, "peers": peers, "output": output}
    command = write_command("compare", (compare, Grid, MeasureOptions, ModelOptions), os.fspath(path), **given)
    parsed = [peer for text in peers for peer in Peer.parse(text)]
    measure = MeasureOptions(**measured)
    named = [NamedPlan.read(source, options.get("window")) for source in plans]
    grid = Grid(plans=named, peers=parsed, **grid_options)
    for count in grid.steps:
        check_run(count, measure.num_images, options.get("seed", 0))
    if output is not None:
        make_folder(output := Path(output))
    backends = (*backends, EAGER) if parsed and EAGER not in backends else tuple(backends)
    subject = open_compared(path, output, model, backends, **asked)
    variants = make_variants(subject.workload, replace(grid, backends=subject.asked))
    return comparisons.compare(subject, variants, measure, output=output, command=command, on_run=on_run)


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
    if options.get("adapters") and (model is not None or find_kind(os.fspath(path)) != BUNDLE):
        raise ZeusError(
            "adapters: got some beside a model, which has none; expected a bundle alone, whose full run is the "
            "reference. Leave the model out, or the adapters."
        )
    path, kind = os.fspath(path), find_kind(os.fspath(path))
    if model is not None and kind != BUNDLE:
        raise ZeusError(f"model: got {model} beside {path}, which is no bundle; expected one of them. Leave it out.")
    source = path if model is None else os.fspath(model)
    if find_kind(source) == PIPELINE:
        return open_subject(open_model(source, engine=None if model is None else Path(path), **options), backends)
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
        if found.weights_sha256 == digest_weights(module)[0] and found.versions == versions:
            return target
    return export_model(path, target, overwrite=True).path
