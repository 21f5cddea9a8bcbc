"""Writing a bundle."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.export.model import Model, load_model
from zeus_trt.export.onnx import EXAMPLE_BATCH, example_inputs, export_onnx
from zeus_trt.export.verify import TOLERANCE, verify
from zeus_trt.files import digest_file, write_folder_atomically
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.manifest import (
    FILE_NAME,
    ONNX_FILE,
    OUTPUT_NAME,
    FileEntry,
    Labels,
    Manifest,
    TensorSpec,
    Verification,
    solver_name,
)
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine
from zeus_trt.runtime.scheduler import load_scheduler
from zeus_trt.zeus_graph.trace import UntraceableError, trace

STEPS = (20, 30, 50)


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
    output = Path(output)
    if overwrite and output.exists() and not (output / FILE_NAME).is_file():
        raise ZeusError(f"output: got {output}, which is no bundle; expected one to replace. Choose another folder.")
    model = load_model(model_folder)
    labels = _choose_labels(model, null_label)
    with write_folder_atomically(output, overwrite) as folder:
        export_onnx(model.denoiser, example_inputs(model, EXAMPLE_BATCH), folder / ONNX_FILE)
        records = verify(model, OnnxRuntimeEngine(folder / ONNX_FILE), "onnxruntime", tolerance)
        _write_solvers(model, steps, folder)
        manifest = _describe(model, labels, records, folder)
        (folder / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return Bundle(output, manifest)


def _write_solvers(model: Model, steps: Sequence[int], folder: Path) -> None:
    scheduler = load_scheduler(model.scheduler_config)
    scheduler.save_config(folder / "scheduler")
    (folder / "solvers").mkdir()
    with contextlib.suppress(UntraceableError):
        for num_steps in steps:
            trace(scheduler, num_steps).save(folder / solver_name(num_steps))


def _choose_labels(model: Model, null_label: int | None) -> Labels | None:
    if model.num_labels is None:
        return None
    null = model.num_labels - 1 if null_label is None else null_label
    if not 0 <= null < model.num_labels:
        raise ZeusError(
            f"null_label: got {null}; expected 0..{model.num_labels - 1}, the labels of this model. Choose one of them."
        )
    return Labels(count=null if null == model.num_labels - 1 else model.num_labels, null=null)


def _describe(model: Model, labels: Labels | None, records: tuple[Verification, ...], folder: Path) -> Manifest:
    inputs = example_inputs(model, EXAMPLE_BATCH)
    latents = inputs[model.latents_name]
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return Manifest(
        model=model.name,
        component=model.component,
        denoiser_class=type(model.denoiser).__name__,
        denoiser_config=model.config,
        weights_sha256=model.weights_sha256,
        prediction_type=model.prediction_type,
        inputs=tuple(
            TensorSpec(name, str(value.dtype).removeprefix("torch."), ("batch", *value.shape[1:]))
            for name, value in inputs.items()
        ),
        output=TensorSpec(OUTPUT_NAME, "float32", ("batch", *latents.shape[1:])),
        labels=labels,
        verification=records,
        versions={name: find_version(name) or "missing" for name in LIBRARIES},
        files={str(f.relative_to(folder).as_posix()): FileEntry(f.stat().st_size, digest_file(f)) for f in files},
    )
