"""Opening a model for a calibration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.record import make_tag
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import EAGER, refuse_backend
from zeus_trt.evaluation.workload import (
    SessionWorkload,
    Workload,
    check_labels,
    choose_guidance,
    make_full_setting,
)
from zeus_trt.export.loading import is_pipeline
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.manifest import FILE_NAME
from zeus_trt.runtime.request import check_count, check_run
from zeus_trt.zeus_graph import json_file

_NUMBERS = ("num_trajectories", "num_validation", "num_held_out")


@dataclass(frozen=True)
class TaskOptions:
    """The options of a calibration, as the command line names them.

    Args:
        steps: Solver steps.
        solver: As in ``Setting``.
        labels: Class labels of the samples, in turn; all by default.
        prompts: For pipelines: a file with a prompt per line; sample k takes line k, in turn.
        guidance_scale: By default the pipeline's own, else as in ``choose_guidance``.
        bundle: For pipelines: the bundle whose engine runs.
        backend: Which engine; by default the bundle's graph, else the eager model.
        num_trajectories: Full runs to record.
        num_validation: Samples that choose among the candidates.
        num_held_out: Samples that measure the winner.
        max_calls: As in ``Task``.
        trajectories: A file of the recorded trajectories, which a resumed calibration reads. By default it is in the
            folder ``calibration`` of the bundle, named by all that determines it.
        keep_beside: The result; the trajectories are kept beside it where there is no bundle.
        seed: Of the samples and of the search.
        on_calls: Called after every batch with its number of denoiser evaluations.

    Raises:
        ZeusError: A number out of range.
    """

    steps: int = 50
    solver: str = "default"
    labels: Sequence[int] | None = None
    prompts: Path | None = None
    guidance_scale: float | None = None
    bundle: Path | None = None
    backend: str | None = None
    num_trajectories: int = 16
    num_validation: int = 16
    num_held_out: int = 32
    max_calls: int | None = None
    trajectories: Path | None = None
    keep_beside: Path | None = None
    seed: int = 0
    on_calls: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            check_count(name, getattr(self, name), 1)
        check_run(self.steps, sum(getattr(self, name) for name in _NUMBERS), self.seed)


def open_task(model: str, options: TaskOptions) -> Task:
    """Opens a bundle of class labels, or a diffusers pipeline, for a calibration.

    Args:
        model: A bundle, a pipeline folder, or a pipeline's id on the hub.
        options: Solver, samples, engine.

    Raises:
        ZeusError: No such model, prompts that are missing or have no use, or a solver that cannot be traced.
    """
    workload, bundle, backend = _open_workload(model, options)
    setting = make_full_setting(workload, options.steps, options.solver, backend)
    trajectories = options.trajectories
    if trajectories is None and (bundle or options.keep_beside):
        tag = make_tag(workload, workload.program(options.steps, options.solver), setting)
        key = json_file.digest(tag)[:16]
        if bundle:
            trajectories = bundle.path / "calibration" / f"{key}.npz"
        elif options.keep_beside:
            trajectories = options.keep_beside.with_name(f"{options.keep_beside.stem}-{key}.npz")
    return Task(
        workload, setting, Samples(*(getattr(options, name) for name in _NUMBERS)), trajectories=trajectories,
        max_calls=options.max_calls, seed=options.seed, on_calls=options.on_calls,
    )  # fmt: skip


def _open_workload(model: str, options: TaskOptions) -> tuple[Workload, Bundle | None, str]:
    """The model, its bundle if it has one, and the engine."""
    backend, seed = options.backend, options.seed
    if is_pipeline(model):
        if backend not in (None, EAGER) and options.bundle is None:
            raise refuse_backend(str(backend))
        if backend == EAGER and options.bundle is not None:
            raise ZeusError("engine: got a bundle with the backend eager, which does not run it. Leave one out.")
        from zeus_trt.pipelines import open_pipeline

        pipeline = open_pipeline(
            model, prompts=read_prompts(options.prompts), labels=options.labels,
            guidance_scale=options.guidance_scale, seed=seed, bundle=options.bundle,
        )  # fmt: skip
        return pipeline, pipeline.bundle, backend or ("onnxruntime" if pipeline.bundle else EAGER)
    if (options.prompts or options.bundle) and (Path(model) / FILE_NAME).is_file():
        option = "--prompts" if options.prompts else "--engine"
        raise ZeusError(f"{option}: got it for a bundle; expected a pipeline. Leave it out.")
    bundle = Bundle.open(model)
    check_labels(bundle, options.labels)
    scale = choose_guidance(bundle, options.guidance_scale)
    return SessionWorkload(bundle, options.labels, scale, seed), bundle, backend or "onnxruntime"


def read_prompts(file: Path | None) -> list[str]:
    """The prompts in a file, one per line; an empty list without a file.

    Raises:
        ZeusError: A file that does not read.
    """
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ZeusError(
            f"--prompts: got {file}, which does not read ({error}); expected a text file. Check it."
        ) from error
    return [line.strip() for line in lines if line.strip()]
