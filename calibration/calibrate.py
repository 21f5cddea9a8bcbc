"""The best plan for a model, a solver and a budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.mixed_search import search_mixed
from zeus_trt.calibration.prediction import predict_psnr
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import list_uniform, search
from zeus_trt.calibration.shrinkage import is_known, shrink
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import Setting, Workload
from zeus_trt.zeus_graph import Plan, SolverProgram
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured
from zeus_trt.zeus_graph.plan_search import check_nfe
from zeus_trt.zeus_graph.prior import Kernel, load_kernels

CANDIDATES = 12
"""Of the search that are run, at most."""

_UNIFORM = 2  # uniform plans that are measured on the held-out samples, at most
_CLOSE_DB = 1.0  # the second of them, where validation leaves it so near the first


@dataclass(frozen=True)
class Samples:
    """Which samples serve what, by their numbers, one after the other.

    Args:
        trajectories: How many are recorded.
        validation: How many the candidates are run on.
        held_out: How many the winner is measured on, which chose nothing.
    """

    trajectories: int = 16
    validation: int = 16
    held_out: int = 32

    def __post_init__(self) -> None:
        if min(self.trajectories, self.validation, self.held_out) < 1:
            raise ZeusError(f"samples: got {self}; expected one at least of each. Give more.")

    @property
    def ranges(self) -> dict[str, range]:
        """The numbers of each use."""
        first, second = self.trajectories, self.trajectories + self.validation
        return {
            "trajectories": range(first),
            "validation": range(first, second),
            "held_out": range(second, second + self.held_out),
        }


@dataclass(frozen=True)
class Task:
    """A calibration: a model, how it runs, and which samples serve what.

    Args:
        workload: The model.
        setting: How it runs, every step full.
        samples: Which samples serve what.
        batch: Samples at a time, where plans are measured.
        trajectories: A file of the recorded trajectories, which a later calibration reads.
        max_calls: The most denoiser evaluations that measuring may take for each budget, counted for each sample, full
            runs too: fewer candidates run where it is small.
        seed: Of the search.
        on_calls: Called after every batch with its number of denoiser evaluations.
        quantized_cost: What a call of the quantized engine costs, in calls of the full one: plans may have ``Q``
            then, and budgets are costs. None searches plans of the full engine alone.
        probes: Record how this model's outputs respond to moved inputs. Without it the prior says that, except for a
            solver that it does not know.
        kernels: The models of the prior; by default those that zeus-trt brings.
    """

    workload: Workload
    setting: Setting
    samples: Samples = field(default_factory=Samples)
    batch: int = 8
    trajectories: Path | None = None
    max_calls: int | None = None
    seed: int = 0
    on_calls: Callable[[int], Any] | None = None
    quantized_cost: float | None = None
    probes: bool = True
    kernels: Sequence[Kernel] = field(default_factory=load_kernels)

    @property
    def program(self) -> SolverProgram:
        """The traced solver."""
        return self.workload.program(self.setting.num_steps, self.setting.solver)

    @property
    def recorded(self) -> dict[str, bool]:
        """What is recorded beside the outputs, as options of ``record`` and ``make_tag``."""
        return {
            "quantized": self.quantized_cost is not None,
            "probes": self.probes or not is_known(self.program, self.kernels),
        }

    def record(self) -> TrajectoryStats:
        """Records the trajectories, or reads them from their file."""
        numbers = self.samples.ranges["trajectories"]
        return record(
            self.workload, self.setting, numbers, path=self.trajectories, on_calls=self.on_calls, **self.recorded
        )  # fmt: skip

    def bench(self) -> Bench:
        """Returns a bench that measures plans of this setting."""
        return Bench(self.workload, self.setting, self.batch, self.on_calls)

    def calibrate(self, stats: TrajectoryStats, bench: Bench, budget: float) -> CalibratedPlan:
        """Searches on the recorded trajectories and the prior, runs the best candidates, and measures the winner.

        The validation samples choose among the candidates, by ``screen``, and so among the uniform plans of as many
        full steps. The better winner on the held-out samples is kept.

        Args:
            stats: The recorded trajectories.
            bench: Measures the plans; it makes each full run once.
            budget: Full steps; with a quantized engine the cost, in calls of the full one.

        Raises:
            ZeusError: An impossible budget.
        """
        nfe = int(budget)
        setting, numbers = self.setting, self.samples.ranges
        program = self.program
        check_nfe(nfe, program.num_evaluations)
        uniform = list_uniform(program.num_evaluations, nfe)
        stats = shrink(program, stats, nfe, self.kernels)
        affordable, before = self._count_affordable(nfe, len(uniform)), bench.calls
        found = search(program, stats, nfe, seed=self.seed)
        if self.quantized_cost is not None:  # the plans of one engine stay candidates
            mixed = search_mixed(program, stats, budget, self.quantized_cost, seed=self.seed)
            found = tuple(plan for pair in zip(mixed, found, strict=False) for plan in pair)
        winner = screen(bench, found[:affordable], numbers["validation"])[0]
        kept = screen(bench, uniform, numbers["validation"])[:_UNIFORM]
        first, *second = (bench.measure(plan, numbers["validation"]) for plan in kept)
        kept = kept[:1] if second and second[0] < first - _CLOSE_DB else kept
        calibrated, *others = (measure(bench, plan, numbers["held_out"]) for plan in (winner, *kept))
        others.sort(key=lambda one: -one.psnr_db)
        better = calibrated.psnr_db > others[0].psnr_db
        chosen = calibrated if better else others[0]
        return CalibratedPlan(
            chosen=chosen,
            calibrated=better,
            predicted_db=predict_psnr(program, stats, chosen.plan),
            uniform=tuple(others),
            num_steps=setting.num_steps,
            solver=setting.solver,
            fingerprint=program.fingerprint,
            backend=setting.backend,
            workload=self.workload.describe(),
            numbers={use: (one.start, len(one)) for use, one in numbers.items()},
            calls={"recording": stats.calls, "measuring": bench.calls - before},
            quantized_cost=self.quantized_cost,
        )

    def _count_affordable(self, nfe: int, num_uniform: int) -> int:
        """How many candidates ``max_calls`` allows to run."""
        if self.max_calls is None:
            return CANDIDATES
        validation, held_out = self.samples.validation, self.samples.held_out
        references = len(self.setting.plan) * (validation + held_out)
        fixed = references + nfe * (held_out * (1 + min(num_uniform, _UNIFORM)) + validation * num_uniform)
        count = (self.max_calls - fixed) // (nfe * validation)
        if count < 1:
            raise ZeusError(
                f"max_calls: got {self.max_calls}; expected at least {fixed + nfe * validation} for {nfe} full steps. "
                "Allow more, or give fewer samples."
            )
        return min(count, CANDIDATES)


def measure(bench: Bench, plan: Plan, numbers: range) -> Measured:
    """A plan with its PSNR on these samples."""
    return Measured(plan.with_predictor(plan.rule), bench.measure(plan, numbers))


def screen(bench: Bench, plans: Sequence[Plan], numbers: range) -> list[Plan]:
    """The plans that are left of candidates, best first.

    Half of them are dropped after a quarter of the samples, and two thirds of the rest after half of the samples.

    Args:
        bench: Measures a plan on some of the samples.
        plans: The candidates.
        numbers: The samples.
    """
    left = list(plans)
    for part, kept in ((4, 2), (2, 3), (1, 1)):
        if len(left) > 2 or part == 1:
            some = numbers[: -(-len(numbers) // part)]
            left = sorted(left, key=lambda plan: -bench.measure(plan, some))[: max(2, -(-len(left) // kept))]
    return left
