"""The variants of a comparison: every setting of the grid, and every peer."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.peer import Peer
from zeus_trt.evaluation.workload import Setting, Workload, make_full_setting
from zeus_trt.runtime.scheduler import name_solvers
from zeus_trt.zeus_graph import PRESETS, Plan, Predictor, SolverProgram, choose_plan, load_plan
from zeus_trt.zeus_graph.plan_choice import Planner, is_for_any_length, lay_plan
from zeus_trt.zeus_graph.window import Window

_LONGEST_NAME = 12


@dataclass(frozen=True)
class Variant:
    """A setting, on the eager model maybe with a peer: a row of the comparison.

    Args:
        label: Its name for a reader, such as ``r = 3``.
        setting: How it runs.
        ratio: Skipped steps after each full one of a uniform plan; 0 for the full run.
        peer: An acceleration of the eager model, instead of skipped steps or below them.
    """

    label: str
    setting: Setting
    ratio: int | None = None
    peer: Peer | None = None

    @property
    def group(self) -> tuple[str, str, int]:
        """Backend, solver and number of steps: variants of one group share a full run."""
        return self.setting.backend, self.setting.solver, self.setting.num_steps

    @property
    def is_full(self) -> bool:
        """Whether this is the full run of its group."""
        return self.peer is None and self.setting.plan.is_plain

    @property
    def key(self) -> str:
        """Equal for variants that do the same."""
        return json.dumps(self.describe(), sort_keys=True)

    def find_full(self, backend: str | None = None) -> "Variant":
        """The full run of its group, or of the same group on another backend."""
        return Variant("full", replace(self.setting.full, backend=backend or self.setting.backend), ratio=0)

    def describe(self) -> dict[str, Any]:
        """All that determines what it does, as JSON data; not its label."""
        setting = self.setting
        return {
            "plan": str(setting.plan),
            "num_steps": setting.num_steps,
            "predictor": setting.predictor.to_json(),
            "solver": setting.solver,
            "backend": setting.backend,
            "mode": setting.mode,
            "peer": str(self.peer) if self.peer else None,
        }


@dataclass(frozen=True)
class NamedPlan:
    """A plan by name.

    Args:
        name: Its name in the table.
        plan: The plan, or a function that makes it for a number of evaluations.
    """

    name: str
    plan: Plan | Planner

    @classmethod
    def read(cls, source: str | os.PathLike | Plan, window: str | Window | None = None) -> "NamedPlan":
        """Reads the name of a preset, a plan such as ``FFXRF``, or its JSON file; a calibrated one has its predictor.

        Args:
            source: One of these.
            window: The window of a preset.

        Raises:
            ZeusError: A preset, plan or file that does not exist or does not read.
        """
        if isinstance(source, str) and source in PRESETS:
            return cls(source, choose_plan(preset=source, window=window))
        text = str(source)
        if text.endswith(".json"):
            name = Path(text).stem
        else:
            name = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
        return cls(name, choose_plan(source) if is_for_any_length(source) else load_plan(source))

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that the plan was calibrated for; an empty tuple fits any."""
        calibration = self.plan.calibration if isinstance(self.plan, Plan) else None
        return tuple(calibration.solvers or [calibration.solver]) if calibration else ()

    def fits(self, solver: str, count: int) -> bool:
        """Whether it runs with this number of evaluations, and with this solver."""
        return solver in (self.solvers or [solver]) and (not isinstance(self.plan, Plan) or len(self.plan) == count)

    def make(self, count: int, predictor: str | None, program: Callable[[], SolverProgram]) -> Plan:
        """The plan of so many evaluations, with its own predictor or the one that is asked for."""
        plan = self.plan if isinstance(self.plan, Plan) else lay_plan(self.plan, count, program)
        made = plan.with_predictor(predictor)
        return made.with_predictor(made.rule)


@dataclass(frozen=True)
class Grid:
    """What a comparison runs: each combination is a variant.

    Args:
        backends: Engines.
        ratios: Ratios of uniform plans.
        window: Their steps that stay full at both ends, as in ``choose_plan``.
        plans: More plans; each runs at the step counts that it fits.
        predictors: Rules that fill skipped steps; ``zeus`` by default. A calibrated plan has its own.
        steps: Numbers of solver steps.
        solvers: ``default``, or as ``runtime.scheduler.name_solver`` takes them.
        peers: Accelerations of the eager model, run with the eager backend.
        compose: Run each cache among the peers below each plan too: it works in the steps that the plan does not skip.
        mode: As in ``Session.generate``.

    Raises:
        ZeusError: A wrong ratio, an unknown predictor or window, or a predictor beside a plan that was calibrated with
            another one.
    """

    backends: Sequence[str] = ("onnxruntime",)
    ratios: Sequence[int] = (0, 2, 3, 4)
    window: str | Window | None = None
    plans: Sequence[NamedPlan] = ()
    predictors: Sequence[str] | None = None
    steps: Sequence[int] = (50,)
    solvers: Sequence[Any] = ("default",)
    peers: Sequence[Peer] = ()
    compose: bool = False
    mode: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "solvers", name_solvers(self.solvers))
        for ratio in (0, *self.ratios):
            choose_plan(ratio=ratio, window=self.window)
        for name in self.predictors or ():
            Predictor.parse(name)
            for named in self.plans:
                if isinstance(named.plan, Plan):
                    named.plan.with_predictor(name)

    def list_plans(
        self, solver: str, count: int, program: Callable[[], SolverProgram]
    ) -> list[tuple[str, Plan, int | None]]:
        """Label, plan and ratio of every plan with skipped steps."""
        found: list[tuple[str, Plan, int | None]] = []
        for name in self.predictors or (None,):
            for ratio in dict.fromkeys(self.ratios):
                uniform = NamedPlan(f"r = {ratio}", choose_plan(ratio=ratio, window=self.window))
                if ratio:
                    found.append((uniform.name, uniform.make(count, name, program), ratio))
            found += [
                (named.name, named.make(count, name, program), None)
                for named in self.plans
                if named.fits(solver, count)
            ]
        return found


def make_variants(workload: Workload, grid: Grid) -> tuple[Variant, ...]:
    """Makes the variants of a grid. Every group begins with its full run, whether it is asked for or not.

    Raises:
        ZeusError: An unknown solver, or a plan that does not fit any of the step counts.
    """
    counts = {(solver, num): workload.count_evaluations(num, solver) for solver in grid.solvers for num in grid.steps}
    for named in grid.plans:
        if not any(named.fits(solver, count) for (solver, _), count in counts.items()):
            load_plan(named.plan, next(iter(counts.values())))  # type: ignore[arg-type]
            raise ZeusError(
                f"plan: got {named.name}, made for the solver {' or '.join(named.solvers)}; expected one of "
                f"{', '.join(grid.solvers)}. Choose its solver, or calibrate for this one."
            )
    variants: list[Variant] = []
    for (solver, num_steps), count in counts.items():
        plans = grid.list_plans(solver, count, partial(workload.program, num_steps, solver))
        for backend in grid.backends:
            full = make_full_setting(workload, num_steps, solver, backend, grid.mode)
            variants.append(Variant("full", full, ratio=0))
            variants += [Variant(label, replace(full, plan=plan), ratio) for label, plan, ratio in plans]
            if backend == "eager":
                variants += [Variant(str(peer), replace(full, policy=peer.policy), peer=peer) for peer in grid.peers]
                caches = [peer for peer in grid.peers if grid.compose and not peer.policy]
                variants += [
                    Variant(f"{label} + {peer}", replace(full, plan=plan), peer=peer)
                    for label, plan, _ in plans
                    for peer in caches
                ]
    return tuple({variant.key: variant for variant in variants}.values())
