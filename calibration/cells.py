"""The cells of a comparison: every setting of the grid, and every peer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zeus_trt.calibration.peers import Peer
from zeus_trt.calibration.workload import Setting, Workload
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Predictor, StepPlan


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
        return self.peer is None and self.setting.plan.nfe == self.setting.plan.num_steps

    @property
    def key(self) -> str:
        """Equal for cells that do the same."""
        return json.dumps(self.describe(), sort_keys=True)

    def find_full(self, backend: str | None = None) -> "Cell":
        """The full run of its group, or of the same group on another backend."""
        setting = self.setting
        plan = StepPlan.uniform(setting.plan.num_steps, 0)
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
    """A step plan, what it is called, and the predictor that was calibrated with it, if any."""

    name: str
    plan: StepPlan
    predictor: Predictor | None = None


def read_plan(text: str) -> NamedPlan:
    """Reads a JSON file with a plan, or a plan such as ``FFXRF``.

    Raises:
        ZeusError: Neither.
    """
    path = Path(text)
    if path.suffix != ".json":
        return NamedPlan(text if len(text) <= 12 else f"{text[:11]}...", StepPlan(text))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ZeusError(f"plan: got {path}, which does not read ({error}); expected a JSON file. Check it.") from error
    predictor = data.get("predictor") if isinstance(data, dict) else None
    if isinstance(predictor, str):
        predictor = {"name": predictor}
    return NamedPlan(path.stem, StepPlan.from_json(data), Predictor.from_json(predictor) if predictor else None)


def make_cells(
    workload: Workload,
    *,
    backends: Sequence[str] = ("onnxruntime",),
    ratios: Sequence[int] = (0, 2, 3, 4),
    plans: Sequence[NamedPlan] = (),
    predictors: Sequence[str] = ("zeus",),
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
        predictors: Rules that fill skipped steps.
        steps: Numbers of solver steps.
        solvers: ``default``, or names of ``runtime.scheduler.SOLVERS``.
        peers: Accelerations of the eager model, run with the eager backend.
        mode: As in ``Session.generate``.

    Raises:
        ZeusError: An unknown solver or predictor, or a plan that fits none of the step counts.
    """
    for name in predictors:
        Predictor.parse(name)
    counts = {(solver, num): workload.count_evaluations(num, solver) for solver in solvers for num in steps}
    for named in plans:
        if named.plan.num_steps not in counts.values():
            named.plan.check_length(next(iter(counts.values())))
    cells: list[Cell] = []
    for (solver, num_steps), count in counts.items():
        for backend in backends:
            full = Cell("full", Setting(StepPlan.uniform(count, 0), num_steps, "zeus", solver, backend, mode), ratio=0)
            cells.append(full)
            for name in predictors:
                for ratio in dict.fromkeys(ratios):
                    plan = StepPlan.uniform(count, ratio)
                    if ratio:
                        cells.append(Cell(f"r = {ratio}", replace(full.setting, plan=plan, predictor=name), ratio))
                for named in plans:
                    if named.plan.num_steps == count:
                        rule = named.predictor or name
                        cells.append(Cell(named.name, replace(full.setting, plan=named.plan, predictor=rule)))
            if backend == "eager":
                cells += [Cell(str(peer), full.setting, peer=peer) for peer in peers]
    return tuple({cell.key: cell for cell in cells}.values())
