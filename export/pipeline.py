"""From a diffusers pipeline to a bundle."""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import verify_capture
from zeus_trt.export.capture import Capture, Input, capture
from zeus_trt.export.flat import export_capture
from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
from zeus_trt.export.limits import Limits
from zeus_trt.export.runs import Settings
from zeus_trt.export.verify import TOLERANCE
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.manifest import (
    ONNX_FILE,
    OUTPUT_NAME,
    Manifest,
    SymbolSpec,
    TensorSpec,
    Verification,
    name_dtype,
)
from zeus_trt.runtime.onnxruntime_engine import OnnxRuntimeEngine

IMAGES = ("num_images_per_prompt", "num_videos_per_prompt")


def load_pipeline(name: str | Path) -> Any:
    """Loads a pipeline folder, or a pipeline of the hub by its id.

    Raises:
        ZeusError: No such folder and no such id, or a pipeline that does not load.
    """
    import diffusers

    try:
        return diffusers.DiffusionPipeline.from_pretrained(str(name))
    except Exception as error:  # the hub, transformers, safetensors and diffusers each raise their own
        raise ZeusError(
            f"model: got {name}, which does not load ({str(error).strip().splitlines()[0]}); expected a pipeline "
            "folder saved by save_pretrained(), or the id of one on a hub that can be reached. Without a network give "
            "a local folder."
        ) from error


def choose_settings(pipeline: Any, size: tuple[int, int] | None = None) -> tuple[Settings, tuple[dict[str, Any], ...]]:
    """How to run a pipeline of prompts for its capture: what to vary, and what to keep for verification.

    Args:
        pipeline: A pipeline with its text encoders.
        size: Height and width of the base run in pixels; the model's own by default.

    Returns:
        The settings, and changes to sizes that the capture never sees.

    Raises:
        ZeusError: A pipeline whose calls must be described by hand: it takes neither prompts nor class labels.
    """
    takes = inspect.signature(pipeline.__call__).parameters
    base: dict[str, Any] = {"output_type": "latent"} if "output_type" in takes else {}
    varied: dict[str, Any] = {}
    if "class_labels" in takes:  # DiT: the batch is that of the labels, the size is fixed
        return Settings({**base, "class_labels": [1, 2]}, {"class_labels": [1, 2, 3]}), ()
    if "prompt" not in takes:
        raise ZeusError(
            f"model: got a {type(pipeline).__name__}, which takes no prompt; expected one that does. "
            "Call export_pipeline() with settings."
        )
    base["prompt"] = "a photo of a cat"
    images = next((name for name in IMAGES if name in takes), None)
    if images:
        base[images], varied[images] = 2, 3
    else:
        base["prompt"], varied["prompt"] = ["a photo of a cat"] * 2, ["a photo of a cat"] * 3
    step, unseen = 8 * getattr(pipeline, "vae_scale_factor", 8), []
    if "height" in takes:
        height, width = size or _default_size(pipeline, step)
        base |= {"height": height, "width": width}
        varied |= {"height": height + step, "width": width + step}
        unseen = [{"height": height + 2 * step}, {"height": height + step, "width": width + 2 * step}]
    if "num_frames" in takes:
        base["num_frames"], varied["num_frames"] = 9, 13
        unseen = [{**change, "num_frames": 17} for change in unseen]
    return Settings(
        base, varied, {"prompt": ["a drawing of a dog"] * 2 if not images else "a drawing of a dog"}
    ), tuple(unseen)


def export_pipeline(
    pipeline: Any,
    output: str | Path,
    *,
    component: str | None = None,
    settings: Settings | None = None,
    unseen: Sequence[Mapping[str, Any]] = (),
    size: tuple[int, int] | None = None,
    steps: Sequence[int] = STEPS,
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
) -> Bundle:
    """Exports the denoiser of a diffusers pipeline, as the pipeline itself calls it.

    The pipeline is run for a few steps with its denoiser imitated; the tensors that it passes
    become the inputs of the graph, and the axes that move with a setting its dynamic axes.

    Args:
        pipeline: A diffusers pipeline, its folder, or its id on the hub; unchanged afterwards.
        output: Folder to make; it appears when everything in it is written and verified.
        component: The denoiser's name; needed where the pipeline has two.
        settings: How to run the pipeline and what to vary; for pipelines of prompts and of class labels
            found by ``choose_settings``.
        unseen: Changes of the base setting to verify at, to sizes that the capture never saw.
        size: Height and width of the base run in pixels, where ``settings`` are not given.
        steps: Step counts whose traced solvers are stored.
        tolerance: Largest relative error to the eager model.
        overwrite: Replace an existing bundle.

    Raises:
        ZeusError: A pipeline that cannot be loaded, run or traced, or a graph that disagrees.
    """
    name = Path(pipeline).name if isinstance(pipeline, str | Path) else getattr(pipeline, "name_or_path", "") or "model"
    if isinstance(pipeline, str | Path):
        pipeline = load_pipeline(pipeline)
    if settings is None:
        settings, unseen = choose_settings(pipeline, size)
    captured = capture(pipeline, settings, component)
    with open_folder(Path(output), overwrite) as folder:
        limits = export_capture(captured, folder / ONNX_FILE)
        engine = OnnxRuntimeEngine(folder / ONNX_FILE)
        agreements = verify_capture(captured, pipeline, engine, settings, unseen, tolerance=tolerance)
        records = tuple(
            Verification("onnxruntime", a.shape, "float32", a.max_error, a.relative_error) for a in agreements
        )
        write_solvers(pipeline.scheduler, steps, folder)
        manifest = seal(_describe(Path(name).name, pipeline, captured, limits, records), folder)
    return Bundle(Path(output), manifest)


def _default_size(pipeline: Any, step: int) -> tuple[int, int]:
    denoiser = getattr(pipeline, "unet", None) or pipeline.transformer
    sample = getattr(denoiser.config, "sample_size", None)
    side = sample * getattr(pipeline, "vae_scale_factor", 8) if isinstance(sample, int) else 512
    side = max(side // step, 2) * step
    return side, side - step


def _describe(
    name: str, pipeline: Any, captured: Capture, limits: Mapping[str, Limits], records: tuple[Verification, ...]
) -> Manifest:
    config = dict(captured.denoiser.config)
    scheduler = dict(pipeline.scheduler.config)
    return Manifest(
        model=name,
        component=captured.component,
        denoiser_class=type(captured.denoiser).__name__,
        denoiser_config=json.loads(json.dumps(config, default=str)),
        weights_sha256=_digest_weights(captured.denoiser),
        prediction_type=scheduler.get("prediction_type", "flow_prediction"),
        inputs=tuple(_describe_input(spec) for spec in captured.inputs),
        output=TensorSpec(OUTPUT_NAME, name_dtype(captured.inputs[0].example), captured.output_axes, "output"),
        symbols=tuple(
            SymbolSpec(
                symbol.name,
                tuple(sorted(set(symbol.sizes))),
                limits[symbol.name].multiple_of if symbol.name in limits else 1,
                limits[symbol.name].maximum if symbol.name in limits else None,
                symbol.factors,
                str(symbol.scale),
            )
            for symbol in captured.symbols
        ),
        labels=None,
        verification=records,
        versions={},
        pipeline_class=type(pipeline).__name__,
        constants=json.loads(json.dumps(dict(captured.constants), default=str)),
        calls_per_step=captured.calls_per_step,
    )


def _describe_input(spec: Input) -> TensorSpec:
    dtype = name_dtype(spec.example) if isinstance(spec.example, torch.Tensor) else "int64"
    return TensorSpec(spec.name, dtype, spec.axes, spec.role)


def _digest_weights(denoiser: torch.nn.Module) -> str:
    """SHA-256 over names, dtypes and bytes of the weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(denoiser.state_dict().items()):
        digest.update(f"{name} {name_dtype(tensor)} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
