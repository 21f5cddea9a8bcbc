"""From a diffusers pipeline to a bundle."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zeus_trt.export.agreement import list_all_cases, list_cases
from zeus_trt.export.capture import capture
from zeus_trt.export.description import describe
from zeus_trt.export.flat import export_capture
from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.missing_weights import check_weights
from zeus_trt.export.precision import cast_capture, check_precision
from zeus_trt.export.relaxation import relax
from zeus_trt.export.runs import Settings
from zeus_trt.export.settings import choose_settings
from zeus_trt.export.verification import verify_graph
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.manifest import Graph, graph_name
from zeus_trt.runtime.bundle.precision import Precision


def export_pipeline(
    pipeline: Any,
    output: str | Path,
    *,
    component: str | None = None,
    settings: Settings | None = None,
    unseen: Sequence[Mapping[str, Any]] = (),
    sizes: Sequence[tuple[int, int]] = (),
    arguments: Mapping[str, Any] | None = None,
    steps: Sequence[int] = STEPS,
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    force: bool = False,
    tolerance: float | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Exports the denoiser of a diffusers pipeline, as the pipeline itself calls it.

    The pipeline is run for a few steps with its denoiser imitated; the tensors that it passes
    become the inputs of the graph, and the axes that move with a setting its dynamic axes.

    Args:
        pipeline: A diffusers pipeline, its folder, or its id on the hub; unchanged afterwards.
        output: Folder to make; it appears when everything in it is written and verified.
        component: The denoiser's name; needed where the pipeline has two.
        settings: How to run the pipeline and what to vary; found by ``choose_settings`` by default.
        unseen: Changes of the base setting to verify at, to sizes that the capture never saw.
        sizes: Heights and widths in pixels to capture and verify at, where ``settings`` are not given.
        arguments: Further arguments that the pipeline is run with, where ``settings`` are not given: numbers, words,
            tensors, and PIL images, which are resized as the sizes ask for.
        steps: Step counts whose traced solvers are stored.
        precision: ``fp32``, ``fp16`` or ``bf16``. A twin is cast, not the model; timestep, guidance and positions
            stay float32.
        keep_fp32: Patterns of module names, such as ``down_blocks.0.*``, that run in float32 in a half all the same.
        force: Export bf16 weights in fp16, or fp16 weights in bf16.
        tolerance: Largest relative error to the eager model in float32; that of the precision by default.
        overwrite: Replace an existing bundle.

    Raises:
        ZeusError: A pipeline that cannot be loaded, run or traced, or a graph that disagrees.
    """
    name = Path(pipeline).name if isinstance(pipeline, str | Path) else getattr(pipeline, "name_or_path", "") or "model"
    if isinstance(pipeline, str | Path):
        folder_or_id, pipeline = pipeline, load_pipeline(pipeline)
        check_weights(pipeline, folder_or_id)
    if settings is None:
        settings, unseen = choose_settings(pipeline, sizes, arguments)
    captured = capture(pipeline, settings, component)
    check_precision(captured.denoiser, precision, force)
    with open_folder(Path(output), overwrite) as folder:
        cast = cast_capture(captured, precision, keep_fp32)
        onnx = folder / graph_name(precision)
        rules = export_capture(cast, onnx)
        verify = partial(verify_graph, captured, onnx, precision=precision, keep_fp32=keep_fp32, tolerance=tolerance)
        asked = [{"height": high, "width": wide} for high, wide in sizes[1:]]
        for case in list_cases(captured, pipeline, settings, asked, batches=()):
            rules.check(case.inputs)  # a size that was asked for is not left out without a word
        records = verify(list_all_cases(captured, pipeline, settings, unseen, rules))
        rules, more = relax(rules, captured, pipeline, settings, verify)
        write_metadata(onnx, rules, precision)
        write_solvers(pipeline.scheduler, steps, folder)
        manifest = describe(
            cast,
            rules,
            Graph(Precision(precision), tuple(keep_fp32), records + more),
            model=Path(name).name,
            prediction_type=pipeline.scheduler.config.get("prediction_type", "flow_prediction"),
            pipeline=pipeline,
        )
        manifest = seal(manifest, folder)
    return Bundle(Path(output), manifest)
