"""The best plan for a model, a solver and a budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zeus_trt.calibration.bench import Bench, split_numbers
from zeus_trt.calibration.mixed_search import search_mixed
from zeus_trt.calibration.objective import average
from zeus_trt.calibration.prediction import predict_psnr
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import interleave, list_uniform, search
from zeus_trt.calibration.shrinkage import is_known, shrink
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import Setting, Workload
from zeus_trt.zeus_graph import Plan, SolverProgram
from zeus_trt.zeus_graph.calibrated_plan import MEAN, OBJECTIVES, WORST_DECILE, CalibratedPlan, Measured, Served
from zeus_trt.zeus_graph.plan_search import check_nfe
from zeus_trt.zeus_graph.prior import Kernel, load_kernels

CANDIDATES = 12
"""Of the search that are run, at most."""

CHEAPER = 4
"""Candidates of one and two full steps less that are run beside them: one may do better than a budget's own."""

_Parts = list[tuple[SolverProgram, TrajectoryStats]]

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
        solvers: Several solvers that one plan is to serve, that of ``setting`` first: samples have them in turn, and
            what they share is which steps are full, and the weights of the outputs. By default that of ``setting``.
        objective: What the search and the choice go by, as in ``average``.

    Raises:
        ZeusError: An unknown objective; or several solvers of unlike numbers of evaluations, with fewer samples than
            solvers, or with a quantized engine.
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
    solvers: tuple[str, ...] = ()
    objective: str = MEAN

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ZeusError(f"objective: got {self.objective}; expected {' or '.join(OBJECTIVES)}. Choose one.")
        if len(self.solvers) < 2:
            return
        counts = {name: self.workload.count_evaluations(self.setting.num_steps, name) for name in self.solvers}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} with {count} evaluations" for name, count in counts.items())
            raise ZeusError(f"solver: got {found}; expected as many of each. Calibrate a plan for each of them.")
        if min(map(len, self.samples.ranges.values())) < len(counts):
            raise ZeusError(f"samples: got {self.samples}; expected {len(counts)} at least of each. Give more.")
        if self.quantized_cost is not None:
            raise ZeusError("cost: got it with several solvers; expected one. Calibrate a plan for each of them.")

    @property
    def programs(self) -> dict[str, SolverProgram]:
        """The traced solvers, that of ``setting`` first."""
        names = self.solvers or (self.setting.solver,)
        return {name: self.workload.program(self.setting.num_steps, name) for name in names}

    @property
    def recorded(self) -> dict[str, bool]:
        """What is recorded beside the outputs, as options of ``record`` and ``make_tag``."""
        return {
            "quantized": self.quantized_cost is not None,
            "probes": self.probes or not all(is_known(one, self.kernels) for one in self.programs.values()),
        }

    def record(self) -> tuple[TrajectoryStats, ...]:
        """Records the trajectories of each solver, or reads them from their files."""
        own = split_numbers(tuple(self.programs), self.samples.ranges["trajectories"])
        return tuple(
            record(
                self.workload, replace(self.setting, solver=solver), numbers, path=self._name_file(solver),
                on_calls=self.on_calls, **self.recorded,
            )
            for solver, numbers in own.items()
        )  # fmt: skip

    def _name_file(self, solver: str) -> Path | None:
        """Where the trajectories of a solver are kept: for further ones beside those of the first."""
        first = self.trajectories
        return first and (first if solver == self.setting.solver else first.with_stem(f"{first.stem}-{solver}"))

    def bench(self) -> Bench:
        """Returns a bench that measures plans of this setting."""
        return Bench(self.workload, self.setting, self.batch, self.on_calls, tuple(self.programs), self.objective)

    def calibrate(
        self, stats: Sequence[TrajectoryStats], bench: Bench, budget: float, cheaper: int = 0
    ) -> CalibratedPlan:
        """Searches on the recorded trajectories and the prior, runs the best candidates, and measures the winner.

        The validation samples choose among the candidates, by ``screen``, and so among the uniform plans of as many
        full steps. Where a plan of fewer full steps does as well there, it is the winner. The better winner on the
        held-out samples is kept.

        Args:
            stats: The recorded trajectories of each solver.
            bench: Measures the plans; it makes each full run once.
            budget: Full steps; with a quantized engine the cost, in calls of the full one.
            cheaper: How many plans of fewer full steps are run.

        Raises:
            ZeusError: An impossible budget.
        """
        nfe, count = int(budget), len(self.setting.plan)
        numbers, before = self.samples.ranges, bench.calls
        check_nfe(nfe, count)
        uniform = list_uniform(count, nfe)
        affordable = self._count_affordable(nfe, len(uniform), cheaper)
        parts = self._shrink(stats, nfe)
        found = self._search(parts, nfe, budget)[: min(affordable, CANDIDATES)]
        winner = screen(bench, found, numbers["validation"])[0]
        if rivals := self._search_cheaper(stats, nfe, min(cheaper, affordable - len(found))):
            best = screen(bench, rivals, numbers["validation"])[0]
            winner = max(best, winner, key=lambda plan: bench.measure(plan, numbers["validation"]))
        kept = screen(bench, uniform, numbers["validation"])[:_UNIFORM]
        first, *second = (bench.measure(plan, numbers["validation"]) for plan in kept)
        kept = kept[:1] if second and second[0] < first - _CLOSE_DB else kept
        calibrated, *others = (measure(bench, plan, numbers["held_out"]) for plan in (winner, *kept))
        others.sort(key=self._score, reverse=True)
        better = self._score(calibrated) > self._score(others[0])
        chosen = calibrated if better else others[0]
        return CalibratedPlan(
            chosen=chosen,
            calibrated=better,
            predicted_db=float(np.mean([predict_psnr(*part, chosen.plan) for part in parts])),
            uniform=tuple(others),
            num_steps=self.setting.num_steps,
            solver=self.setting.solver,
            fingerprint=self.programs[self.setting.solver].fingerprint,
            backend=self.setting.backend,
            workload=self.workload.describe(),
            numbers={use: (one.start, len(one)) for use, one in numbers.items()},
            calls={"recording": sum(one.calls for one in stats), "measuring": bench.calls - before},
            quantized_cost=self.quantized_cost,
            objective=self.objective,
            budget=budget if better and winner in rivals else None,
            solvers=self.list_served(bench, numbers["held_out"], chosen.plan, others[0].plan),
        )

    def _score(self, one: Measured) -> float:
        return one.score(self.objective)

    def _search(self, parts: _Parts, nfe: int, budget: float, restarts: int = 2) -> tuple[Plan, ...]:
        """The candidates of a budget, best predicted first."""
        (program, own), *others = parts
        found = search(
            program, own, nfe, others=others, objective=self.objective, restarts=restarts, seed=self.seed
        )  # fmt: skip
        if self.quantized_cost is None:
            return found
        mixed = search_mixed(program, own, budget, self.quantized_cost, seed=self.seed)
        return interleave(mixed, found)  # those of one engine stay

    def _search_cheaper(self, stats: Sequence[TrajectoryStats], nfe: int, count: int) -> tuple[Plan, ...]:
        """So many plans of one and two full steps less, half of them each."""
        if count < 1 or nfe == len(self.setting.plan):
            return ()
        budgets = range(max(nfe - 2, min(3, len(self.setting.plan))), nfe)
        found = [self._search(self._shrink(stats, fewer), fewer, fewer, restarts=0) for fewer in budgets]
        return tuple(plan for plans in found for plan in plans[: -(-count // 2)])[:count]

    def _shrink(self, stats: Sequence[TrajectoryStats], nfe: int) -> _Parts:
        """Every solver with its trajectories, completed by the prior where they need it."""
        parts = zip(self.programs.values(), stats, strict=True)
        return [(program, shrink(program, one, nfe, self.kernels)) for program, one in parts]

    def list_served(self, bench: Bench, numbers: range, plan: Plan, uniform: Plan) -> dict[str, Served]:
        """What a plan of several solvers is worth for each of them, beside the best uniform one; empty for one solver.

        Args:
            bench: Has measured both.
            numbers: The samples.
            plan: The plan.
            uniform: The best uniform plan.
        """
        if len(self.programs) == 1:
            return {}
        own = split_numbers(tuple(self.programs), numbers)
        return {
            name: Served(program.fingerprint, *(average(bench.list_psnr(one, own[name])) for one in (plan, uniform)))
            for name, program in self.programs.items()
        }

    def _count_affordable(self, nfe: int, num_uniform: int, cheaper: int) -> int:
        """How many candidates ``max_calls`` allows to run, the cheaper ones among them."""
        if self.max_calls is None:
            return CANDIDATES + cheaper
        validation, held_out = self.samples.validation, self.samples.held_out
        references = len(self.setting.plan) * (validation + held_out)
        fixed = references + nfe * (held_out * (1 + min(num_uniform, _UNIFORM)) + validation * num_uniform)
        count = (self.max_calls - fixed) // (nfe * validation)
        if count < 1:
            raise ZeusError(
                f"max_calls: got {self.max_calls}; expected at least {fixed + nfe * validation} for {nfe} full steps. "
                "Allow more, or give fewer samples."
            )
        return min(count, CANDIDATES + cheaper)


def measure(bench: Bench, plan: Plan, numbers: range) -> Measured:
    """A plan with its PSNR on these samples."""
    values = bench.list_psnr(plan, numbers)
    return Measured(plan.with_predictor(plan.rule), average(values), average(values, WORST_DECILE))


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
