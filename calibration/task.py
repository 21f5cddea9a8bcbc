"""What is calibrated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples, calibrate
from zeus_trt.calibration.calibrated_plan import CalibratedPlan
from zeus_trt.calibration.gram import Gram
from zeus_trt.calibration.record import make_tag, record
from zeus_trt.calibration.workload import SessionWorkload, Workload
from zeus_trt.runtime import Bundle
from zeus_trt.zeus_graph import json_file


@dataclass(frozen=True)
class Task:
    """A workload, how it is run, and which samples serve what.

    Args:
        workload: What is sampled.
        num_steps: Solver steps.
        solver: As in ``Setting``.
        backend: As in ``Setting``.
        samples: Which samples serve what.
        batch: Samples at a time.
        trajectories: A file for the recorded trajectories, which a later calibration finds; or none.
        max_calls: As in ``calibrate``.
        seed: Of the search.
        on_calls: Told of denoiser evaluations as they are done.
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
            backend=self.backend, batch=self.batch, path=self.trajectories, on_calls=self.on_calls,
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
    bundle: str | Path,
    *,
    steps: int = 50,
    solver: str = "default",
    labels: Sequence[int] | None = None,
    guidance_scale: float = 1.0,
    backend: str = "onnxruntime",
    num_trajectories: int = 16,
    num_validation: int = 16,
    num_held_out: int = 32,
    max_calls: int | None = None,
    seed: int = 0,
    on_calls: Callable[[int], Any] | None = None,
) -> Task:
    """The task of a bundle; its trajectories are kept in the bundle's folder ``calibration``, a file per setting.

    Raises:
        ZeusError: No bundle, or a solver that cannot be traced.
    """
    opened = Bundle.open(bundle)
    workload = SessionWorkload(opened, labels, guidance_scale, seed)
    tag = make_tag(workload, workload.program(steps, solver), steps, solver, backend)
    return Task(
        workload, steps, solver, backend, Samples(num_trajectories, num_validation, num_held_out),
        trajectories=opened.path / "calibration" / f"{json_file.digest(tag)[:16]}.npz",
        max_calls=max_calls, seed=seed, on_calls=on_calls,
    )  # fmt: skip
