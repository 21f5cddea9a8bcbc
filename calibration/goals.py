"""The goal of a calibration: a budget, a speed-up or a quality."""

import math
from dataclasses import dataclass, replace

from zeus_trt.calibration.calibrate import CHEAPER, Task, measure
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured
from zeus_trt.zeus_graph.counts import check_count, is_finite, show
from zeus_trt.zeus_graph.plan_search import check_nfe


@dataclass(frozen=True)
class Goal:
    """One of three.

    Args:
        nfe: Full steps.
        speedup: Evaluations / full steps, at least.
        min_psnr: PSNR in dB to the full run, at least, by the objective of the task.

    Raises:
        ZeusError: Not exactly one of them, or one that is no number.
    """

    nfe: int | None = None
    speedup: float | None = None
    min_psnr: float | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            raise ZeusError(
                f"goal: got {', '.join(given) or 'nothing'}; expected one of nfe (the budget), speedup and min_psnr. "
                "Give one of them."
            )
        if self.nfe is not None:
            check_count("nfe", self.nfe, 0)
        for name, value in (("speedup", self.speedup), ("min_psnr", self.min_psnr)):
            if value is not None and not is_finite(value):
                raise ZeusError(f"{name}: got {show(value)}; expected a number. Give one.")

    def count_full_steps(self, num_evaluations: int) -> int | None:
        """The full steps that the goal allows; None where a quality is asked for.

        Raises:
            ZeusError: No plan can have so few, or so many.
        """
        if self.speedup is not None:
            return nfe_for_speedup(num_evaluations, self.speedup)
        if self.nfe is not None:
            check_nfe(self.nfe, num_evaluations)
        return self.nfe


def reach(task: Task, goal: Goal) -> CalibratedPlan:
    """Calibrates for a goal.

    For a quality the fewest full steps are found by bisection; ``max_calls`` holds for each number that is tried.

    Raises:
        ZeusError: An impossible goal, or a quality that no plan reached; the best one that was measured is named.
    """
    nfe = goal.count_full_steps(len(task.setting.plan))
    stats, bench = task.record(), task.bench()
    if nfe is not None:
        is_cost = task.quantized_cost is not None and goal.speedup is not None
        budget = len(task.setting.plan) / (goal.speedup or 1.0) if is_cost else nfe
        return task.calibrate(stats, bench, budget, CHEAPER if task.quantized_cost is None else 0)
    least = goal.min_psnr or 0.0
    low, high = min(3, len(task.setting.plan)), len(task.setting.plan) - 1
    best, reached = None, -math.inf
    while low <= high:
        nfe = (low + high) // 2
        found = task.calibrate(stats, bench, nfe)
        score = found.chosen.score(task.objective)
        reached = max(reached, score)
        if score >= least:
            best, high = found, nfe - 1
        else:
            low = nfe + 1
    if best is None:
        raise ZeusError(
            f"min_psnr: got {least:g} dB, which no plan reached; expected at most {reached:.1f} dB, the best that was "
            "measured. Ask for less, or run every step in full."
        )
    return best


def check_plan(task: Task, found: CalibratedPlan) -> CalibratedPlan:
    """Measures a plan, and the uniform ones beside it, on samples that its calibration never saw.

    Returns:
        The plan with the new figures: on as many samples as ``task.samples.held_out``, by the solvers of the task.

    Raises:
        ZeusError: The plan belongs to another model, solver or number of steps.
    """
    setting, bench, described = task.setting, task.bench(), task.workload.describe()
    for program in task.programs.values():
        found.check(described, setting.num_steps, program.fingerprint)
    same = all(found.workload.get(name) == described.get(name) for name in ("seed", "labels", "prompts"))
    first = max(start + count for start, count in found.numbers.values()) if same else 0
    numbers = range(first, first + task.samples.held_out)

    def again(one: Measured) -> Measured:
        return measure(bench, one.plan, numbers)

    chosen = again(found.chosen)
    uniform = sorted(map(again, found.uniform), key=lambda one: -one.score(found.objective))
    return replace(
        found,
        chosen=chosen,
        uniform=tuple(uniform),
        solver=setting.solver,
        fingerprint=task.programs[setting.solver].fingerprint,
        solvers=task.list_served(bench, numbers, chosen.plan, uniform[0].plan),
        numbers={**found.numbers, "held_out": (first, task.samples.held_out)},
        calls={"recording": 0, "measuring": bench.calls},
    )


def nfe_for_speedup(num_evaluations: int, speedup: float) -> int:
    """The most full steps whose bound on the speed-up, evaluations / NFE, is at least ``speedup``.

    Raises:
        ZeusError: No plan can be that fast.
    """
    least = min(3, num_evaluations)
    if not 1 <= speedup <= num_evaluations / least:
        raise ZeusError(
            f"speedup: got {speedup:g}; expected 1..{num_evaluations / least:.4g} for {num_evaluations} evaluations. "
            "Three of them are always full."
        )
    return math.floor(num_evaluations / speedup + 1e-9)
