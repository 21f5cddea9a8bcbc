"""From a bare model folder to a bundle."""

from collections.abc import Sequence
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
from zeus_trt.export.model import Model, load_model
from zeus_trt.export.onnx import EXAMPLE_BATCH, example_inputs, export_onnx
from zeus_trt.export.verify import TOLERANCE, verify
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.manifest import (
    ONNX_FILE,
    OUTPUT_NAME,
    Labels,
    Manifest,
    SymbolSpec,
    TensorSpec,
    Verification,
    name_dtype,
)
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine
from zeus_trt.runtime.scheduler import load_scheduler


def export_bundle(
    model_folder: str | Path,
    output: str | Path,
    *,
    null_label: int | None = None,
    steps: Sequence[int] = STEPS,
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
) -> Bundle:
    """Exports a diffusers model folder to a bundle, and verifies it against the eager model.

    Args:
        model_folder: Folder with ``unet`` or ``transformer``, and ``scheduler``.
        output: Folder to make; it appears when everything in it is written and verified.
        null_label: Label of the unconditional rows of guidance; the last one by default.
        steps: Step counts whose traced solvers are stored, so that a runtime without
            diffusers can run them; none are for a solver that cannot be traced.
        tolerance: Largest relative error to the eager model.
        overwrite: Replace an existing bundle.

    Raises:
        ZeusError: No such model, an unwritable output, or a graph that disagrees.
    """
    model = load_model(model_folder)
    labels = _choose_labels(model, null_label)
    with open_folder(Path(output), overwrite) as folder:
        export_onnx(model.denoiser, example_inputs(model, EXAMPLE_BATCH), folder / ONNX_FILE)
        records = verify(model, OnnxRuntimeEngine(folder / ONNX_FILE), "onnxruntime", tolerance)
        write_solvers(load_scheduler(model.scheduler_config), steps, folder)
        manifest = seal(_describe(model, labels, records), folder)
    return Bundle(Path(output), manifest)


def _choose_labels(model: Model, null_label: int | None) -> Labels | None:
    if model.num_labels is None:
        return None
    null = model.num_labels - 1 if null_label is None else null_label
    if not 0 <= null < model.num_labels:
        raise ZeusError(
            f"null_label: got {null}; expected 0..{model.num_labels - 1}, the labels of this model. Choose one of them."
        )
    return Labels(count=null if null == model.num_labels - 1 else model.num_labels, null=null)


def _describe(model: Model, labels: Labels | None, records: tuple[Verification, ...]) -> Manifest:
    inputs = example_inputs(model, EXAMPLE_BATCH)
    roles = {model.latents_name: "latents", "timestep": "timestep"}
    return Manifest(
        model=model.name,
        component=model.component,
        denoiser_class=type(model.denoiser).__name__,
        denoiser_config=model.config,
        weights_sha256=model.weights_sha256,
        prediction_type=model.prediction_type,
        inputs=tuple(
            TensorSpec(name, name_dtype(value), ("batch", *value.shape[1:]), roles.get(name, "conditioning"))
            for name, value in inputs.items()
        ),
        output=TensorSpec(OUTPUT_NAME, "float32", ("batch", *inputs[model.latents_name].shape[1:]), "output"),
        symbols=(SymbolSpec("batch", tuple(sorted({record.shape[0] for record in records} | {EXAMPLE_BATCH}))),),
        labels=labels,
        verification=records,
        versions={},
    )
