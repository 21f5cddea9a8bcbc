"""What `zeus-trt run` does."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError, escape
from zeus_trt.evaluation.pipeline_workload import EAGER, PipelineWorkload, refuse_backend
from zeus_trt.evaluation.workload import SessionWorkload, Workload, check_labels, choose_guidance
from zeus_trt.export.loading import is_pipeline
from zeus_trt.files import check_place
from zeus_trt.media import check_format, check_kind, write_media
from zeus_trt.pipelines import name_option, open_pipeline, refuse_mode
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.manifest import FILE_NAME as MANIFEST
from zeus_trt.runtime.engines.choose import choose_engine
from zeus_trt.runtime.report import Report
from zeus_trt.runtime.request import check_run
from zeus_trt.zeus_graph import Plan, Predictor, choose_plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan

logger = logging.getLogger(__name__)

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
        return escape(
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
    ratio: int | None = None,
    plan: Plan | CalibratedPlan | None = None,
    window: str | None = None,
    preset: str | None = None,
    num_images: int | None = None,
    steps: int = 50,
    seed: int = 0,
    predictor: str | None = None,
    backend: str | None = None,
    mode: str | None = None,
    guidance_scale: float | None = None,
    labels: Sequence[int] | None = None,
    compare_full: bool = False,
    progress: Callable[[], AbstractContextManager] | None = None,
    warn: Callable[[str], Any] = print,
    say: Callable[[str], Any] = print,
    **asked: Any,
) -> list[Made]:
    """Samples a bundle of class labels, or a diffusers pipeline, and writes pictures or a video.

    Args:
        model: A bundle, a pipeline folder, or a pipeline's id on the hub.
        output: The file to write; its ending says what.
        ratio: Skipped steps after each full one; 3 by default.
        plan: What happens at each step, instead of ``ratio``; a calibrated one brings its predictor.
        window: As in ``choose_plan``, and so is ``preset``.
        num_images: How many, and no fewer than prompts or labels, which take turns; by default 8 of class labels, else
            one per prompt.
        steps: Solver steps.
        seed: Image k draws its noise from seed + k.
        predictor: The rule that fills skipped steps; by default ``zeus``, or a calibrated plan's own.
        backend: Which engine; by default the bundle's best, and ``eager`` for a pipeline without a bundle.
        mode: As in ``Session.generate``; a pipeline has its own loop, and takes none.
        guidance_scale: The pipeline's own by default.
        labels: Of a model of class labels.
        compare_full: Write the full run too, beside it.
        progress: Makes the progress bar of a run, whose ``update`` is called after every call of the denoiser.
        warn: Takes a sentence where a calibrated plan runs otherwise than it was calibrated.
        **asked: Of pipelines, as ``open_pipeline`` takes them.

    Raises:
        ZeusError: A file that cannot be written, or something that this model does not take.
    """
    check_format(output)
    files = [output, *([output.with_name(f"{output.stem}-full{output.suffix}")] if compare_full else [])]
    for file in files:
        check_place(file)
    check_run(steps, 1 if num_images is None else num_images, seed)
    choose = choose_plan(plan.plan if isinstance(plan, CalibratedPlan) else plan, ratio, window, preset, predictor)
    _check_predictor(predictor, plan, ratio)
    asked = {name: value for name, value in asked.items() if value not in (None, ())}
    workload, backend = _open(model, backend, mode, labels, guidance_scale, seed, asked)
    plan, rule_of_skipped = _fit_plan(plan, predictor, workload, steps, backend, warn)
    count = _count_images(num_images, workload)
    check_run(steps, count, seed)
    check_kind(output, is_video=isinstance(workload, PipelineWorkload) and workload.makes_videos)
    made = []
    for file, wanted in zip(files, (plan or choose, choose_plan(ratio=0)), strict=False):
        with progress() if progress else nullcontext() as bar:
            sample = workload.sample(
                wanted, range(count), num_steps=steps, backend=backend, mode=mode or "auto", predictor=rule_of_skipped,
                on_call=None if bar is None else bar.update,
            )  # fmt: skip
        write_media(sample.images, file)
        made.append(Made(file, sample.report))
    return made


def _check_predictor(predictor: str | None, plan: Plan | CalibratedPlan | None, ratio: int | None) -> None:
    """Refuses a rule that would have no effect."""
    written = plan.plan if isinstance(plan, CalibratedPlan) else plan
    if predictor is not None and (ratio == 0 or (written is not None and written.nfe == len(written))):
        raise ZeusError(
            f"predictor: got {predictor} for a run that skips no step; expected nothing, since there is nothing to "
            "predict. Leave it out."
        )


def _open(
    model: str,
    backend: str | None,
    mode: str | None,
    labels: Sequence[int] | None,
    guidance_scale: float | None,
    seed: int,
    asked: dict[str, Any],
) -> tuple[PipelineWorkload | SessionWorkload, str]:
    """What is sampled, and the engine that it runs on."""
    if is_pipeline(model):
        if mode is not None:
            raise refuse_mode(mode)
        if backend not in (None, EAGER) and "bundle" not in asked:
            raise refuse_backend(backend)
        if backend == EAGER and "bundle" in asked:
            raise ZeusError(
                "--engine: got it with --backend eager, which runs none; expected one of the two. Leave one."
            )
        pipeline = open_pipeline(model, labels=labels, guidance_scale=guidance_scale, seed=seed, **asked)
        return pipeline, backend or ("auto" if pipeline.bundle else EAGER)
    if asked and (Path(model) / MANIFEST).is_file():
        raise ZeusError(f"{name_option(next(iter(asked)))}: got it for a bundle; expected a pipeline. Leave it out.")
    bundle = Bundle.open(model)
    check_labels(bundle, labels)
    guidance_scale = choose_guidance(bundle, guidance_scale)
    engine, reason = choose_engine(bundle, backend or "auto")
    logger.info("runs %s: %s", engine.backend, reason)
    return SessionWorkload(bundle, labels, guidance_scale, seed, {engine.backend: engine}), engine.backend


def _count_images(asked: int | None, workload: PipelineWorkload | SessionWorkload) -> int:
    given = len((workload.prompts if isinstance(workload, PipelineWorkload) else workload.labels) or ())
    if asked is not None and asked < given:
        raise ZeusError(
            f"--num-images: got {asked} for {given} prompts or labels; expected {given} or more. Raise it, or leave "
            "some out."
        )
    return asked or max(given, NUM_LABELLED if isinstance(workload, SessionWorkload) else 0)


def _fit_plan(
    plan: Plan | CalibratedPlan | None,
    predictor: str | None,
    workload: Workload,
    num_steps: int,
    backend: str,
    warn: Callable[[str], Any],
) -> tuple[Plan | None, str | Predictor | None]:
    """The plan and what fills its skipped steps; a calibrated one is checked, and brings its own."""
    if not isinstance(plan, CalibratedPlan):
        return plan, predictor
    plan.check(workload.describe(), num_steps, workload.program(num_steps).fingerprint)
    for sentence in plan.list_differences(workload.describe(), backend):
        warn(sentence)
    return plan.chosen.plan, plan.chosen.predictor
