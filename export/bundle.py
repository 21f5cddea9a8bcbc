"""From a bare model folder to a bundle."""

from collections.abc import Sequence
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import allowed, list_model_cases
from zeus_trt.export.description import describe
from zeus_trt.export.flat import export_capture
from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.loading import is_pipeline
from zeus_trt.export.model import Model, describe_model, load_model
from zeus_trt.export.precision import cast_capture, check_precision
from zeus_trt.export.verification import verify_graph
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.manifest import Graph, Labels, graph_name
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.scheduler import load_scheduler


def export_bundle(
    model_folder: str | Path,
    output: str | Path,
    *,
    null_label: int | None = None,
    steps: Sequence[int] = STEPS,
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    force: bool = False,
    tolerance: float | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Exports a diffusers model folder to a bundle, and verifies it against the eager model.

    Args:
        model_folder: Folder with ``unet`` or ``transformer``, and ``scheduler``.
        output: Folder to make; it appears when everything in it is written and verified.
        null_label: Label of the unconditional rows of guidance; the last one by default.
        steps: Step counts whose traced solvers are stored, so that a runtime without
            diffusers can run them; none are for a solver that cannot be traced.
        precision: ``fp32``, ``fp16`` or ``bf16``. A twin is cast, not the model; timestep, guidance and positions
            stay float32.
        keep_fp32: Patterns of module names, such as ``down_blocks.0.*``, that run in float32 in a half all the same.
        force: Export bf16 weights in fp16, or fp16 weights in bf16.
        tolerance: Largest relative error to the eager model in float32; that of the precision by default.
        overwrite: Replace an existing bundle.

    Raises:
        ZeusError: No such model, an unwritable output, or a graph that disagrees.
    """
    if not isinstance(model_folder, str | Path) or is_pipeline(model_folder):
        name = model_folder if isinstance(model_folder, str | Path) else f"a {type(model_folder).__name__}"
        raise ZeusError(
            f"model: got {name}, which is a pipeline or the name of one; expected a folder with one denoiser and its "
            "scheduler. Call export_pipeline()."
        )
    model = load_model(model_folder)
    labels = _choose_labels(model, null_label)
    captured = describe_model(model)
    check_precision(model.denoiser, precision, force)
    with open_folder(Path(output), overwrite) as folder:
        cast = cast_capture(captured, precision, keep_fp32)
        onnx = folder / graph_name(precision)
        rules = export_capture(cast, onnx)
        cases = allowed(list_model_cases(model), rules)
        records = verify_graph(captured, onnx, cases, precision, keep_fp32, tolerance)
        write_metadata(onnx, rules, precision)
        write_solvers(load_scheduler(model.scheduler_config), steps, folder)
        manifest = describe(
            cast,
            rules,
            Graph(Precision(precision), tuple(keep_fp32), records),
            model=model.name,
            prediction_type=model.prediction_type,
            labels=labels,
        )
        manifest = seal(manifest, folder)
    return Bundle(Path(output), manifest)


def _choose_labels(model: Model, null_label: int | None) -> Labels | None:
    if model.num_labels is None:
        if null_label is not None:
            raise ZeusError(f"null_label: got {null_label} for a model without class labels. Leave it out.")
        return None
    null = model.num_labels - 1 if null_label is None else null_label
    if not 0 <= null < model.num_labels:
        raise ZeusError(
            f"null_label: got {null}; expected 0..{model.num_labels - 1}, the labels of this model. Choose one of them."
        )
    return Labels(count=null if null == model.num_labels - 1 else model.num_labels, null=null)
