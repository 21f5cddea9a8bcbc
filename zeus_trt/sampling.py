"""What `zeus-trt run` does."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError, escape
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.export.loading import BUNDLE, NONE, find_kind
from zeus_trt.files import check_place
from zeus_trt.media import check_format, check_kind, write_media
from zeus_trt.open_model import ModelOptions, open_model
from zeus_trt.options import split_options
from zeus_trt.runtime.menu import check_floor, refuse_floor
from zeus_trt.runtime.report import Report
from zeus_trt.runtime.request import check_run
from zeus_trt.zeus_graph import PRESETS, Plan, choose_plan, load_plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.plan_choice import Planner
from zeus_trt.zeus_graph.policy import PolicyMaker
from zeus_trt.zeus_graph.policy_choice import read_policy

NUM_LABELLED = 8
"""Images of a bundle or a bare model by default; a pipeline makes one per prompt."""


@dataclass(frozen=True)
class RunOptions:
    """How samples are made.

    Args:
        ratio: Skipped steps after each full one; 3 by default.
        plan: What happens at each step, instead of ``ratio``, as ``load_plan`` takes it; a calibrated plan brings its
            predictor.
        window, preset: As in ``choose_plan``.
        predictor: The rule that fills skipped steps; by default ``zeus``, or a calibrated plan's own.
        min_psnr: PSNR in dB to the full run, instead of all of these, as in ``Session.generate``.
        policy: As in ``Request``: decides at run time which steps are full.
        steps: Solver steps.
        num_images: How many, and no fewer than prompts or labels, which take turns; by default ``NUM_LABELLED``, of a
            pipeline one per prompt.
        compare_full: Write the full run too, beside it.

    Raises:
        ZeusError: Two ways to give the plan, or one that does not exist.
    """

    ratio: int | None = None
    plan: Plan | CalibratedPlan | str | os.PathLike | None = None
    window: str | None = None
    preset: str | None = None
    predictor: str | None = None
    min_psnr: float | None = None
    policy: str | PolicyMaker | None = None
    steps: int = 50
    num_images: int | None = None
    compare_full: bool = False

    def __post_init__(self) -> None:
        self.make_planner()
        given = (self.plan, self.ratio, self.window, self.preset, self.predictor)
        check_floor(self.min_psnr, any(value is not None for value in given))
        if self.policy is not None:
            read_policy(self.policy)
        is_named = isinstance(self.plan, str) and (self.plan in PRESETS or self.plan.startswith("prior:"))
        if self.plan is not None and not is_named:
            object.__setattr__(self, "plan", load_plan(self.plan))
        is_full = isinstance(self.plan, Plan) and self.plan.is_plain
        if self.predictor and (self.ratio == 0 or is_full):
            raise ZeusError(
                f"predictor: got {self.predictor} for a run that skips no step; expected nothing, since there is "
                "nothing to predict. Leave it out."
            )

    def make_planner(self) -> Planner:
        """The function that makes the plan for a number of evaluations."""
        return choose_plan(self.plan, self.ratio, self.window, self.preset, self.predictor)


@dataclass(frozen=True)
class Made:
    """A file that was written, and what the run did."""

    output: Path
    report: Report

    def describe(self) -> str:
        """The run on one line."""
        report = self.report
        reason = "" if report.reason in ("", "asked for") else f"; plan: {report.reason}"
        return escape(
            f"{self.output}: {report.nfe} of {len(report.plan)} steps call {report.backend}, "
            f"{report.total_seconds:.2f} s (engine {report.engine_seconds:.2f} s), {report.mode} mode{reason}"
        )

    def to_json(self) -> dict[str, Any]:
        """The run as JSON data."""
        return {"output": str(self.output), **vars(self.report)}


def run_model(
    model: str | Path,
    output: Path,
    *,
    progress: Callable[[], AbstractContextManager] | None = None,
    warn: Callable[[str], Any] = print,
    **options: Any,
) -> list[Made]:
    """Samples a bundle, a bare model folder or a diffusers pipeline, and writes pictures or a video.

    Args:
        model: As in ``open_model``.
        output: The file to write; its ending says what.
        progress: Makes the progress bar of a run, whose ``update`` is called after every call of the denoiser.
        warn: Called with a sentence where a calibrated plan runs otherwise than it was calibrated.
        **options: Of ``RunOptions`` and ``ModelOptions``.

    Raises:
        ZeusError: A file that cannot be written, or something that this model does not take.
    """
    check_format(output)
    own, model_options = split_options(options, RunOptions, ModelOptions)
    asked, seed = RunOptions(**own), options.get("seed", 0)
    files = [output, *([output.with_name(f"{output.stem}-full{output.suffix}")] if asked.compare_full else [])]
    for file in files:
        check_place(file)
    check_run(asked.steps, 1 if asked.num_images is None else asked.num_images, seed)
    if asked.min_psnr is not None and options.get("engine") is None and find_kind(model) not in (BUNDLE, NONE):
        raise refuse_floor()
    workload = open_model(model, **model_options)
    backend = workload.open(options.get("backend") or "auto")
    _check_calibration(asked, workload, backend, warn)
    count = _count_images(asked.num_images, len(options.get("prompts") or options.get("labels") or ()), workload)
    check_run(asked.steps, count, seed)
    check_kind(output, is_video=isinstance(workload, PipelineWorkload) and workload.makes_videos)
    planner = asked.make_planner() if asked.min_psnr is None else None
    chosen: dict[str, Any] = {"plan": planner, "min_psnr": asked.min_psnr, "policy": asked.policy}
    made = []
    for file, plan in zip(files, (chosen, {"plan": choose_plan(ratio=0)}), strict=False):
        with progress() if progress else nullcontext() as bar:
            sample = workload.sample(
                numbers=range(count), **plan, num_steps=asked.steps, backend=backend,
                mode=options.get("mode") or "auto", on_call=None if bar is None else bar.update,
            )  # fmt: skip
        write_media(sample.images, file)
        made.append(Made(file, sample.report))
    return made


def _count_images(asked: int | None, given: int, workload: SessionWorkload | PipelineWorkload) -> int:
    if asked is not None and asked < given:
        raise ZeusError(
            f"num_images: got {asked} for {given} prompts or labels; expected {given} or more. Raise it, or leave "
            "some out."
        )
    least = given if given and isinstance(workload, PipelineWorkload) else NUM_LABELLED
    return asked or max(given, least)


def _check_calibration(
    asked: RunOptions, workload: SessionWorkload | PipelineWorkload, backend: str, warn: Callable[[str], Any]
) -> None:
    """Refuses a calibrated plan of another model, solver or number of steps; warns of what differs otherwise."""
    found = asked.plan.calibration if isinstance(asked.plan, Plan) else None
    if found is None:
        return
    found.check(workload.describe(), asked.steps, workload.program(asked.steps).fingerprint)
    for sentence in found.list_differences(workload.describe(), backend):
        warn(sentence)
