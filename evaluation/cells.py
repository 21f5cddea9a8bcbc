"""The cells of a comparison: every setting of the grid, and every peer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.peers import Peer
from zeus_trt.evaluation.workload import Setting, Workload
from zeus_trt.zeus_graph import Plan, Predictor, choose_predictor, json_file
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan

_LONGEST_NAME = 12


@dataclass(frozen=True)
class Cell:
    """One row to be: a setting, or a peer on the eager model.

    Args:
        label: What the reader calls it, such as ``r = 3``.
        setting: How it runs.
        ratio: Skipped steps after each full one, where the plan is a uniform one; 0 for the full run.
        peer: An acceleration of the eager model instead of skipped steps.
    """

    label: str
    setting: Setting
    ratio: int | None = None
    peer: Peer | None = None

    @property
    def group(self) -> tuple[str, str, int]:
        """Backend, solver and number of steps: cells of one group share a full run."""
        return self.setting.backend, self.setting.solver, self.setting.num_steps

    @property
    def is_full(self) -> bool:
        """Whether this is the full run of its group."""
        return self.peer is None and self.setting.plan.nfe == len(self.setting.plan)

    @property
    def key(self) -> str:
        """Equal for cells that do the same."""
        return json.dumps(self.describe(), sort_keys=True)

    def find_full(self, backend: str | None = None) -> "Cell":
        """The full run of its group, or of the same group on another backend."""
        setting = self.setting
        plan = Plan.uniform(len(setting.plan), 0)
        full = replace(setting, plan=plan, predictor="zeus", backend=backend or setting.backend)
        return Cell("full", full, ratio=0)

    def describe(self) -> dict[str, Any]:
        """All that determines what it does, as JSON data; not its label."""
        setting = self.setting
        return {
            "plan": str(setting.plan),
            "num_steps": setting.num_steps,
            "predictor": Predictor.parse(setting.predictor).to_json(),
            "solver": setting.solver,
            "backend": setting.backend,
            "mode": setting.mode,
            "peer": str(self.peer) if self.peer else None,
        }


@dataclass(frozen=True)
class NamedPlan:
    """A step plan by name.

    Args:
        name: What it is called.
        plan: The plan.
        predictor: The rule that it was calibrated with, if any.
        solver: The solver that it was calibrated for; None fits any.
    """

    name: str
    plan: Plan
    predictor: str | Predictor | None = None
    solver: str | None = None

    def fits(self, solver: str, count: int) -> bool:
        """Whether it can run: its length is right, and the solver is its own."""
        return len(self.plan) == count and self.solver in (None, solver)


def read_plan(text: str | Plan) -> NamedPlan:
    """Reads a plan such as ``FFXRF``, or a JSON file: a ``Plan``, or what ``zeus-trt calibrate`` wrote.

    A ``Plan`` is named by its letters, and keeps its predictor.

    Raises:
        ZeusError: None of these.
    """
    if isinstance(text, Plan):
        return replace(read_plan(str(text)), predictor=text.predictor)
    path = Path(text)
    if path.suffix != ".json":
        return NamedPlan(text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}...", Plan(text))
    data = json_file.load(path, "plan")
    if isinstance(data, dict) and "plan" in data:
        calibrated = CalibratedPlan.from_json(data)
        return NamedPlan(path.stem, calibrated.chosen.plan, calibrated.chosen.predictor, calibrated.solver)
    return NamedPlan(path.stem, Plan.from_json(data))


def check_predictors(predictors: Sequence[str], plans: Sequence[NamedPlan]) -> None:
    """Raises ZeusError for an unknown rule, and for one beside a calibrated plan of another."""
    for name in predictors:
        Predictor.parse(name)
        for named in plans:
            own = None if named.predictor is None else Predictor.parse(named.predictor)
            choose_predictor(replace(named.plan, predictor=own), name)


def make_cells(
    workload: Workload,
    *,
    backends: Sequence[str] = ("onnxruntime",),
    ratios: Sequence[int] = (0, 2, 3, 4),
    plans: Sequence[NamedPlan] = (),
    predictors: Sequence[str] | None = None,
    steps: Sequence[int] = (50,),
    solvers: Sequence[str] = ("default",),
    peers: Sequence[Peer] = (),
    mode: str = "auto",
) -> tuple[Cell, ...]:
    """Makes the grid; every group begins with its full run, whether it was asked for or not.

    Args:
        workload: What runs.
        backends: Engines.
        ratios: Ratios of uniform plans.
        plans: More plans; each is run at the step count that it fits.
        predictors: Rules that fill skipped steps; ``zeus`` by default. A calibrated plan has its own.
        steps: Numbers of solver steps.
        solvers: ``default``, or names of ``runtime.scheduler.SOLVERS``.
        peers: Accelerations of the eager model, run with the eager backend.
        mode: As in ``Session.generate``.

    Raises:
        ZeusError: An unknown solver or predictor, or a plan that fits none of the step counts.
    """
    check_predictors(predictors or (), plans)
    predictors = predictors or ("zeus",)
    counts = {(solver, num): workload.count_evaluations(num, solver) for solver in solvers for num in steps}
    for named in plans:
        if not any(named.fits(solver, count) for (solver, _), count in counts.items()):
            named.plan.check_length(next(iter(counts.values())))
            raise ZeusError(
                f"plan: got {named.name}, made for the solver {named.solver}; expected one of {', '.join(solvers)}. "
                "Give --solvers, or calibrate for this one."
            )
    cells: list[Cell] = []
    for (solver, num_steps), count in counts.items():
        for backend in backends:
            full = Cell("full", Setting(Plan.uniform(count, 0), num_steps, "zeus", solver, backend, mode), ratio=0)
            cells.append(full)
            for name in predictors:
                for ratio in dict.fromkeys(ratios):
                    plan = Plan.uniform(count, ratio)
                    if ratio:
                        cells.append(Cell(f"r = {ratio}", replace(full.setting, plan=plan, predictor=name), ratio))
                for named in plans:
                    if named.fits(solver, count):
                        rule = named.predictor or name
                        cells.append(Cell(named.name, replace(full.setting, plan=named.plan, predictor=rule)))
            if backend == "eager":
                cells += [Cell(str(peer), full.setting, peer=peer) for peer in peers]
    return tuple({cell.key: cell for cell in cells}.values())
