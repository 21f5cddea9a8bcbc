"""Whether a plan keeps a quality: a check for continuous integration."""

from dataclasses import dataclass
from typing import Any

from zeus_trt.calibration.calibrate import Task
from zeus_trt.errors import FailedCheck
from zeus_trt.zeus_graph import Plan, json_file
from zeus_trt.zeus_graph.plan_choice import Planner, lay_plan


@dataclass(frozen=True)
class Gate:
    """A plan that was measured against a floor.

    Args:
        plan: What ran.
        psnr_db: Mean PSNR in dB to the full run, of samples that differ from it; infinity if none does.
        worst_db: That of the worst sample.
        min_psnr: The floor in dB, of the mean.
        num_samples: Samples.
    """

    plan: Plan
    psnr_db: float
    worst_db: float
    min_psnr: float
    num_samples: int

    @property
    def passes(self) -> bool:
        """Whether the mean reaches the floor."""
        return self.psnr_db >= self.min_psnr

    def describe(self) -> str:
        """The result for a person."""
        return (
            f"{self.plan.describe()}\n"
            f"PSNR           {self.psnr_db:.1f} dB on {self.num_samples} samples, the worst {self.worst_db:.1f} dB\n"
            f"floor          {self.min_psnr:g} dB: {'passes' if self.passes else 'fails'}"
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        numbers = {name: getattr(self, name) for name in ("psnr_db", "worst_db", "min_psnr", "num_samples", "passes")}
        return json_file.plain({"plan": self.plan.to_json(), **numbers})

    def check(self) -> "Gate":
        """Returns the gate if it passes; raises FailedCheck if not."""
        if not self.passes:
            raise FailedCheck(
                f"gate: got {self.psnr_db:.2f} dB on {self.num_samples} samples (the worst {self.worst_db:.2f} dB); "
                f"expected {self.min_psnr:g} dB at least. Calibrate a plan, run more full steps, or lower the floor.",
                self.to_json(),
            )
        return self


def measure_gate(task: Task, choose: Planner, min_psnr: float) -> Gate:
    """Measures a plan on the held-out samples of a task.

    Args:
        task: The model, how it runs, and its samples.
        choose: Makes the plan for the task's number of evaluations.
        min_psnr: The floor in dB.

    Raises:
        ZeusError: The plan belongs to another model, solver or number of steps.
    """
    setting, workload, numbers = task.setting, task.workload, task.samples.ranges["held_out"]
    plan = lay_plan(choose, len(setting.plan), lambda: workload.program(setting.num_steps, setting.solver))
    if plan.calibration:
        fingerprint = workload.program(setting.num_steps, setting.solver).fingerprint
        plan.calibration.check(workload.describe(), setting.num_steps, fingerprint)
    bench = task.bench()
    mean = bench.measure(plan, numbers)
    worst = min(bench.measure(plan, [number]) for number in numbers)
    return Gate(plan, mean, worst, min_psnr, len(numbers))
