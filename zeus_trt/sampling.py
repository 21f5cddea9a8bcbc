"""What `zeus-trt run` does."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt.calibration.calibrated_plan import CalibratedPlan
from zeus_trt.calibration.pipeline_workload import EAGER, PipelineWorkload
from zeus_trt.calibration.workload import SessionWorkload, Workload
from zeus_trt.errors import ZeusError
from zeus_trt.export.loading import is_pipeline, load_pipeline
from zeus_trt.media import check_format, write_media
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.engines import choose_engine
from zeus_trt.runtime.report import Report
from zeus_trt.zeus_graph import Predictor, StepPlan

LABEL_GUIDANCE = 2.0
"""Guidance of models of class labels, where nothing is asked; a pipeline has its own."""
NUM_LABELLED = 8
"""Images of a bundle, where nothing is asked; a pipeline makes one per prompt."""


@dataclass(frozen=True)
class Made:
    """A file that was written, and what the run did."""

    output: Path
    report: Report

    def describe(self) -> str:
        """The run on one line."""
        report = self.report
        return (
            f"{self.output}: {report.nfe} of {len(report.plan)} steps call {report.backend}, "
            f"{report.total_seconds:.2f} s (engine {report.engine_seconds:.2f} s), {report.mode} mode"
        )

    def to_json(self) -> dict[str, Any]:
        """The run as JSON data."""
        return {"output": str(self.output), **vars(self.report)}


def run_model(
    model: str,
    output: Path,
    *,
    ratio: int = 3,
    plan: StepPlan | CalibratedPlan | None = None,
    num_images: int | None = None,
    steps: int = 50,
    seed: int = 0,
    predictor: str = "zeus",
    backend: str | None = None,
    mode: str = "auto",
    guidance_scale: float | None = None,
    labels: Sequence[int] | None = None,
    compare_full: bool = False,
    progress: Callable[[], AbstractContextManager] | None = None,
    warn: Callable[[str], Any] = print,
    **asked: Any,
) -> list[Made]:
    """Samples a bundle of class labels, or a diffusers pipeline, and writes pictures or a video.

    Args:
        model: A bundle, a pipeline folder, or a pipeline's id on the hub.
        output: The file to write; its ending says what.
        ratio: Skipped steps after each full one.
        plan: What happens at each step, instead of ``ratio``; a calibrated one brings its predictor.
        num_images: How many; by default 8 of class labels, else one per prompt.
        steps: Solver steps.
        seed: Image k draws its noise from seed + k.
        predictor: The rule that fills skipped steps.
        backend: Which engine; by default the bundle's best, and ``eager`` for a pipeline without a bundle.
        mode: As in ``Session.generate``; a pipeline has its own loop.
        guidance_scale: The pipeline's own by default.
        labels: Of a bundle of class labels.
        compare_full: Write the full run too, beside it.
        progress: Makes the progress bar of a run, whose ``update`` is called after every call of the denoiser.
        warn: Takes a sentence where a calibrated plan runs otherwise than it was calibrated.
        **asked: Of pipelines, as ``open_pipeline`` takes them.

    Raises:
        ZeusError: A file that cannot be written, or something that this model does not take.
    """
    check_format(output)
    asked = {name: value for name, value in asked.items() if value not in (None, ())}
    workload, backend = _open(model, backend, labels, guidance_scale, seed, asked)
    plan, rule_of_skipped = _fit_plan(plan, predictor, workload, steps, backend, warn)
    count = num_images or (len(workload.prompts) if isinstance(workload, PipelineWorkload) else NUM_LABELLED)
    runs = {output: plan or _spread(ratio)}
    if compare_full:
        runs[output.with_name(f"{output.stem}-full{output.suffix}")] = _spread(0)
    made = []
    for file, wanted in runs.items():
        with progress() if progress else nullcontext() as bar:
            sample = workload.sample(
                wanted, range(count), num_steps=steps, backend=backend, mode=mode, predictor=rule_of_skipped,
                on_call=None if bar is None else bar.update,
            )  # fmt: skip
        write_media(sample.images, file)
        made.append(Made(file, sample.report))
    return made


def _spread(ratio: int) -> Callable[[int], StepPlan]:
    return lambda total: StepPlan.uniform(total, ratio)


def _open(
    model: str,
    backend: str | None,
    labels: Sequence[int] | None,
    guidance_scale: float | None,
    seed: int,
    asked: dict[str, Any],
) -> tuple[PipelineWorkload | SessionWorkload, str]:
    """What is sampled, and the engine that it runs on."""
    if is_pipeline(model):
        prompts = asked.pop("prompts", ()) or labels or ()
        pipeline = open_pipeline(model, prompts=prompts, guidance_scale=guidance_scale, seed=seed, **asked)
        return pipeline, backend or ("auto" if pipeline.bundle else EAGER)
    if asked:
        raise ZeusError(f"{next(iter(asked))}: got it for a bundle; expected a pipeline. Leave it out.")
    bundle = Bundle.open(model)
    engine = choose_engine(bundle, backend or "auto")[0]
    if guidance_scale is None:
        guidance_scale = LABEL_GUIDANCE if bundle.manifest.labels else 1.0
    return SessionWorkload(bundle, labels, guidance_scale, seed, {engine.backend: engine}), engine.backend


def _fit_plan(
    plan: StepPlan | CalibratedPlan | None,
    predictor: str,
    workload: Workload,
    num_steps: int,
    backend: str,
    warn: Callable[[str], Any],
) -> tuple[StepPlan | None, str | Predictor]:
    """The plan and what fills its skipped steps; a calibrated one is checked, and brings its own."""
    if not isinstance(plan, CalibratedPlan):
        return plan, predictor
    plan.check(workload, num_steps)
    for sentence in plan.list_differences(workload, backend):
        warn(sentence)
    return plan.chosen.plan, plan.chosen.predictor


def open_pipeline(
    model: str,
    *,
    prompts: Sequence[Any] = (),
    guidance_scale: float | None = None,
    seed: int = 0,
    negative_prompt: str | None = None,
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    image: Path | None = None,
    strength: float | None = None,
    bundle: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> PipelineWorkload:
    """Loads a pipeline with what it is asked for.

    Args:
        model: A pipeline folder, or a pipeline's id on the hub.
        prompts: One per image, in turn.
        guidance_scale: The pipeline's own by default.
        seed: Image k draws its noise from seed + k.
        negative_prompt: Of every image.
        size: Height and width in pixels.
        frames: Of a video.
        image: A picture to begin with: the pipeline becomes that of image to image.
        strength: How much of the picture is made anew, 0..1.
        bundle: Export of the pipeline, whose engine runs.
        device: By default a GPU if there is one.
        dtype: ``fp32`` (default), ``fp16`` or ``bf16``.

    Raises:
        ZeusError: A pipeline that does not load, no prompt, or something that this pipeline does not take.
    """
    types = {None: None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if dtype not in types:
        raise ZeusError(f"dtype: got {dtype}; expected fp32, fp16 or bf16. Choose one of these.")
    if not prompts:
        raise ZeusError("prompt: got none for a pipeline; expected one or more. Give --prompt, or --label.")
    pipeline = load_pipeline(model, types[dtype])
    arguments: dict[str, Any] = {"guidance_scale": guidance_scale, "negative_prompt": negative_prompt}
    arguments |= {"num_frames": frames, "strength": strength}
    if image:  # such pipelines take the picture's size
        pipeline = _to_image_to_image(pipeline)
        arguments["image"] = _read_image(image, size)
    elif size:
        arguments |= {"height": size[0], "width": size[1]}
    pipeline.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    pipeline.set_progress_bar_config(disable=True)
    given = {name: value for name, value in arguments.items() if value is not None}
    return PipelineWorkload(pipeline, prompts, given, seed, Bundle.open(bundle) if bundle else None)


def _to_image_to_image(pipeline: Any) -> Any:
    import diffusers

    try:
        return diffusers.AutoPipelineForImage2Image.from_pipe(pipeline)
    except ValueError as error:
        raise ZeusError(
            f"image: got one for a {type(pipeline).__name__}, which has no form that begins with a picture; expected a "
            "pipeline that has. Leave it out."
        ) from error


def _read_image(file: Path, size: tuple[int, int] | None) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise ZeusError(f"image: got {file}, which does not read ({error}); expected a picture. Choose one.") from error
    return image.resize(size[::-1]) if size else image
