"""From a diffusers model to a verified bundle and its engines."""

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import list_all_cases, list_cases
from zeus_trt.export.bare_pipeline import BarePipeline
from zeus_trt.export.build import build_engine, check_backend
from zeus_trt.export.capture import Capture, capture
from zeus_trt.export.description import describe
from zeus_trt.export.flat import Untraceable, export_capture
from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.labels import choose_labels
from zeus_trt.export.loading import is_pipeline, load_pipeline
from zeus_trt.export.pipeline_call import DETAIL
from zeus_trt.export.precision import cast_capture, check_precision
from zeus_trt.export.profile import SizeRange
from zeus_trt.export.reach import verify_in_reach
from zeus_trt.export.relaxation import leave_special, relax
from zeus_trt.export.runs import Network, Settings
from zeus_trt.export.settings import choose_settings, fix_text
from zeus_trt.export.tensorrt import Progress
from zeus_trt.export.verification import choose_trace, verify_graph
from zeus_trt.runtime.bundle.branch import Branch
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.manifest import NETWORKS, Graph, Labels, Manifest, Verification, graph_name
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules

GRAPH_ITSELF = "onnxruntime"
_log = logging.getLogger("zeus_trt")


@dataclass(frozen=True)
class ExportOptions:
    """How a model is exported.

    Args:
        component: The denoiser's name; needed where the pipeline has two. What is named is exported alone: a denoiser
            without the networks beside it, or a network such as ``controlnet``.
        settings: How to run the pipeline and what to vary; found by ``choose_settings`` by default.
        unseen: Changes of the base setting to verify at, to sizes that the capture never saw.
        sizes: Heights and widths in pixels to capture and verify at, where ``settings`` are not given.
        arguments: Further arguments that the pipeline is run with, where ``settings`` are not given: numbers, words,
            tensors, and PIL images, which are resized as the sizes ask for.
        null_label: Label of the unconditional rows of guidance, for bare model folders; the last one by default.
        steps: Step counts whose traced solvers are stored, so that a runtime without diffusers can run them; none are
            stored for a solver that cannot be traced.
        precision: ``fp32``, ``fp16`` or ``bf16``. A copy is cast, not the model; timestep, guidance and positions stay
            float32.
        keep_fp32: Patterns of module names, such as ``down_blocks.0.*``, that run in float32 in a half all the same.
        force: Export bf16 weights in fp16, or fp16 weights in bf16.
        tolerance: Largest relative error to the eager model in float32; that of the precision by default.
        overwrite: Replace an existing bundle.

    Raises:
        ZeusError: ``keep_fp32`` for fp32.
    """

    component: str | None = None
    settings: Settings | None = None
    unseen: Sequence[Mapping[str, Any]] = ()
    sizes: Sequence[tuple[int, int]] = ()
    arguments: Mapping[str, Any] | None = None
    null_label: int | None = None
    steps: Sequence[int] = STEPS
    precision: str = "fp32"
    keep_fp32: Sequence[str] = ()
    force: bool = False
    tolerance: float | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.keep_fp32 and self.precision == "fp32":
            raise ZeusError("keep_fp32: got it for an export in fp32; expected fp16 or bf16. Leave it out.")


@dataclass(frozen=True)
class _Source:
    """A pipeline, what it passes to its denoiser, and how it was run to find that."""

    name: str
    pipeline: Any
    settings: Settings
    unseen: Sequence[Mapping[str, Any]]
    captured: Capture
    labels: Labels | None = field(default=None)


def export_model(model: Any, output: str | Path, **options: Any) -> Bundle:
    """Exports the denoiser of a pipeline or of a bare model folder, as the pipeline calls it.

    The pipeline is run for a few steps without its denoiser; the tensors that it passes become the inputs of the graph,
    and the axes that move with a setting its dynamic axes. A bare model folder is run by a ``BarePipeline``.

    Args:
        model: A diffusers pipeline, which is unchanged afterwards; a pipeline's folder, its id on the hub; or a folder
            with ``unet`` or ``transformer``, and ``scheduler``.
        output: Folder to make; it appears when everything in it is written and verified.
        **options: As in ``ExportOptions``: ``sizes``, ``precision``, ``null_label``, ``overwrite`` ...

    Raises:
        ZeusError: A model that cannot be loaded, run or traced, an unwritable output, or a graph that disagrees.
    """
    asked = ExportOptions(**options)
    source = _capture(model, asked)
    check_precision(source.captured.denoiser, asked.precision, asked.force)
    with open_folder(Path(output), asked.overwrite) as folder:
        beside = source.captured.beside if asked.component is None else ()
        networks = tuple(name for name in beside if _write_network(source, name, asked, folder / NETWORKS / name))
        sealed = seal(replace(_write(source, asked, folder), networks=networks), folder)
    return Bundle(Path(output), sealed)


def export_with_engines(
    model: Any,
    output: str | Path,
    backends: Sequence[str] = (),
    *,
    gpu: str | Sequence[str] | None = None,
    ranges: Mapping[str, SizeRange] | None = None,
    on_progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> tuple[Bundle, tuple[EngineRecord, ...]]:
    """Exports a model, and builds engines of it. What no backend here can build is refused before the export.

    Args:
        model, output: As in ``export_model``.
        backends: What to build for; ``onnxruntime`` runs the graph itself.
        gpu, ranges, on_progress, say: As in ``build_engine``.
        **options: As in ``ExportOptions``.

    Raises:
        ZeusError: As the two functions do. A bundle whose engine could not be built is whole, and stays.
    """
    engines = [backend for backend in backends if backend != GRAPH_ITSELF]
    for backend in engines:
        check_backend(backend, gpu)
    bundle = export_model(model, output, **options)
    build = partial(build_engine, gpu=gpu, ranges=ranges, on_progress=on_progress, say=say)
    all_of_it = [bundle, *map(bundle.open_network, bundle.manifest.networks)]
    traces = [choose_trace(one, model, options.get("arguments")) for one in all_of_it]
    return bundle, tuple(
        build(one, backend, trace=trace) for one, trace in zip(all_of_it, traces, strict=True) for backend in engines
    )


def _capture(model: Any, asked: ExportOptions) -> _Source:
    is_name = isinstance(model, str | Path)
    is_whole = is_pipeline(model) if is_name else not isinstance(model, BarePipeline)
    if asked.null_label is not None and is_whole:
        raise ZeusError(f"null_label: got {asked.null_label} for a pipeline; expected a bare model. Leave it out.")
    pipeline = load_pipeline(model) if is_name else model
    name = Path(model).resolve().name if is_name else Path(getattr(model, "name_or_path", "") or "model").name
    labels = choose_labels(pipeline.denoiser, asked.null_label) if isinstance(pipeline, BarePipeline) else None
    settings, unseen = asked.settings, asked.unseen
    if settings is None:
        settings, unseen = choose_settings(pipeline, asked.sizes, asked.arguments)
    return _Source(name, pipeline, settings, unseen, capture(pipeline, settings, asked.component), labels)


def _write_network(source: _Source, name: str, asked: ExportOptions, folder: Path) -> bool:
    """Writes the bundle of a network that the denoiser reads; without one it warns, and returns False."""
    try:
        captured = capture(source.pipeline, source.settings, name, network=Network())
        own = replace(asked, steps=(), keep_fp32=())
        seal(_write(replace(source, captured=captured), own, folder), folder)
    except ZeusError as error:
        shutil.rmtree(folder, ignore_errors=True)
        _log.warning("%s: runs in torch at full steps, since it does not export (%s)", name, error)
        return False
    return True


def _write(source: _Source, asked: ExportOptions, folder: Path) -> Manifest:
    """Writes the graph and the solvers, for prompts of any length where the code of the denoiser allows it."""
    try:
        return _write_rows(source, asked, folder)
    except ZeusError as error:
        if DETAIL not in source.settings.varied:
            raise
        settings, unseen = fix_text(source.settings, source.unseen)
        network = Network(source.captured.takes_numbers) if source.captured.layout else None
        captured = capture(source.pipeline, settings, source.captured.component, network=network)
        if captured.symbols == source.captured.symbols:
            raise
        _log.warning("prompts: the graph takes text of one length, since it does not export for others (%s)", error)
        return _write_rows(replace(source, settings=settings, unseen=unseen, captured=captured), asked, folder)


def _write_rows(source: _Source, asked: ExportOptions, folder: Path) -> Manifest:
    """Writes them in the first way that the code of the denoiser allows: for any number of rows, or for one."""
    captured, again = source.captured, partial(capture, source.pipeline, source.settings, source.captured.component)
    fixed = Network(takes_numbers=False) if captured.layout else None
    ways: list[Callable[[], Capture]] = [lambda: captured]
    if captured.takes_numbers:
        ways.append(partial(again, network=fixed))
    if captured.has_batch:  # for code that goes through the rows one by one in Python
        ways.append(partial(again, is_one=True, network=fixed))
    for way in ways[:-1]:
        with contextlib.suppress(Untraceable):
            return _write_bundle(replace(source, captured=way()), asked, folder)
    return _write_bundle(replace(source, captured=ways[-1]()), asked, folder)


def _write_bundle(source: _Source, asked: ExportOptions, folder: Path) -> Manifest:
    """Writes the graph and the solvers, and verifies the graph; returns the manifest without versions and files."""
    pipeline, onnx = source.pipeline, folder / graph_name(asked.precision)
    made = _write_graph(source, asked, onnx)
    write_metadata(onnx, made.rules, asked.precision)
    write_solvers(pipeline.scheduler, asked.steps, folder)
    return describe(
        made.captured, made.rules, Graph(Precision(asked.precision), tuple(asked.keep_fp32), made.records),
        model=source.name, labels=source.labels, pipeline=pipeline, branches=made.branches,
        prediction_type=pipeline.scheduler.config.get("prediction_type", "flow_prediction"),  # flow has no such key
    )  # fmt: skip


@dataclass(frozen=True)
class _Written:
    """What a graph was traced of, what it asks of its sizes and values, and how it was verified."""

    captured: Capture
    rules: SizeRules
    branches: tuple[Branch, ...]
    records: tuple[Verification, ...]


def _write_graph(source: _Source, asked: ExportOptions, onnx: Path, base: Capture | None = None) -> _Written:
    """Writes a graph, traced at ``base`` where that is given."""
    pipeline, settings, captured = source.pipeline, source.settings, source.captured
    precision, keep = asked.precision, asked.keep_fp32
    cast = cast_capture(base or captured, precision, keep)
    rules, branches = export_capture(cast, onnx)
    if base is None and (other := leave_special(captured, rules, pipeline, settings)):
        try:
            return _write_graph(source, asked, onnx, other)
        except ZeusError:
            export_capture(cast, onnx)  # a graph for the special sizes is better than none
    verify = partial(verify_graph, captured, onnx, precision=precision, keep_fp32=keep, tolerance=asked.tolerance)
    rules, records = verify_in_reach(
        rules,
        captured.flatten(captured.arguments),
        partial(list_all_cases, captured, pipeline, settings, source.unseen),
        verify,
    )
    rules, more = relax(rules, captured, pipeline, settings, verify)
    changes = [{"height": high, "width": wide} for high, wide in asked.sizes[1:]]
    for case in list_cases(captured, pipeline, settings, [{}, *changes] if base else changes, batches=()):
        rules.check(case.inputs)  # a size that was asked for is not left out without a word
    return _Written(cast, rules, branches, records + more)
