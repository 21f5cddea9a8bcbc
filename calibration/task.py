"""What is calibrated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples, calibrate
from zeus_trt.calibration.gram import Gram
from zeus_trt.calibration.record import make_tag, record
from zeus_trt.evaluation.pipeline_workload import EAGER
from zeus_trt.evaluation.workload import Workload
from zeus_trt.runtime.request import check_count, check_run
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan


@dataclass(frozen=True)
class Task:
    """A workload, how it is run, and which samples serve what.

    Args:
        workload: What is sampled.
        num_steps: Solver steps.
        solver: As in ``Setting``.
        backend: As in ``Setting``.
        samples: Which samples serve what.
        batch: Samples at a time, where plans are measured.
        trajectories: A file for the recorded trajectories, which a later calibration finds; or none.
        max_calls: As in ``calibrate``.
        seed: Of the search.
        on_calls: Called with the number of denoiser evaluations as they are done.
    """

    workload: Workload
    num_steps: int = 50
    solver: str = "default"
    backend: str = "onnxruntime"
    samples: Samples = field(default_factory=Samples)
    batch: int = 8
    trajectories: Path | None = None
    max_calls: int | None = None
    seed: int = 0
    on_calls: Callable[[int], Any] | None = None

    def record(self) -> Gram:
        """Records the trajectories, or finds them in their file."""
        return record(
            self.workload, self.samples.ranges["trajectories"], num_steps=self.num_steps, solver=self.solver,
            backend=self.backend, path=self.trajectories, on_calls=self.on_calls,
        )  # fmt: skip

    def bench(self) -> Bench:
        """What measures."""
        return Bench(self.workload, self.num_steps, self.solver, self.backend, self.batch, self.on_calls)

    def calibrate(self, gram: Gram, bench: Bench, nfe: int) -> CalibratedPlan:
        """The plan of so many full steps."""
        return calibrate(
            self.workload, gram, bench, nfe, samples=self.samples, max_calls=self.max_calls, seed=self.seed
        )


def open_task(
    model: str,
    *,
    steps: int = 50,
    solver: str = "default",
    labels: Sequence[int] | None = None,
    prompts: Path | None = None,
    guidance_scale: float | None = None,
    bundle: Path | None = None,
    backend: str | None = None,
    num_trajectories: int = 16,
    num_validation: int = 16,
    num_held_out: int = 32,
    max_calls: int | None = None,
    trajectories: Path | None = None,
    keep_beside: Path | None = None,
    seed: int = 0,
    on_calls: Callable[[int], Any] | None = None,
) -> Task:
    """The task of a bundle of class labels, or of a diffusers pipeline.

    Args:
        model: A bundle, a pipeline folder, or a pipeline's id on the hub.
        steps: Solver steps.
        solver: As in ``Setting``.
        labels: Class labels of the samples, in turn; all by default.
        prompts: For pipelines: a file with a prompt per line; sample k takes line k, in turn.
        guidance_scale: By default the pipeline's own, else as in ``choose_guidance``.
        bundle: For pipelines: its bundle, to be run.
        backend: Which engine; by default the bundle's graph, else the eager model.
        num_trajectories: Full runs to record.
        num_validation: Samples that choose among the candidates.
        num_held_out: Samples that measure the winner.
        max_calls: As in ``calibrate``.
        trajectories: A file for the recorded trajectories, which an interrupted calibration reads when it is run
            again. By default it is in the folder ``calibration`` of the bundle, named by all that determines it.
        keep_beside: The result, beside which the trajectories are kept where there is no bundle.
        seed: Of the samples and of the search.
        on_calls: Called with the number of denoiser evaluations as they are done.

    Raises:
        ZeusError: No such model, prompts that are missing or not wanted, or a solver that cannot be traced.
    """
    for name, number in (
        ("trajectories", num_trajectories),
        ("validation", num_validation),
        ("held_out", num_held_out),
    ):
        check_count(f"num_{name}", number, 1)
    check_run(steps, num_trajectories + num_validation + num_held_out, seed)
    from zeus_trt.open_model import open_model

    workload = open_model(
        model, prompts=prompts or (), labels=labels, guidance_scale=guidance_scale, seed=seed, bundle=bundle,
        backend=backend,
    )  # fmt: skip
    opened = workload.bundle
    backend = backend or ("onnxruntime" if opened else EAGER)
    if trajectories is None and (opened or keep_beside):
        tag = make_tag(workload, workload.program(steps, solver), steps, solver, backend)
        key = json_file.digest(tag)[:16]
        trajectories = opened.path / "calibration" / f"{key}.npz" if opened else None
        trajectories = trajectories or (keep_beside and keep_beside.with_name(f"{keep_beside.stem}-{key}.npz"))
    return Task(
        workload, steps, solver, backend, Samples(num_trajectories, num_validation, num_held_out),
        trajectories=trajectories, max_calls=max_calls, seed=seed, on_calls=on_calls,
    )  # fmt: skip
