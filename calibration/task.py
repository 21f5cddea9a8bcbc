"""The task of a calibration, from its options."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.record import make_tag
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import EAGER, PipelineWorkload
from zeus_trt.evaluation.workload import SessionWorkload, Setting, Workload, make_full_setting
from zeus_trt.runtime.request import check_count, check_run
from zeus_trt.runtime.scheduler import name_solvers
from zeus_trt.zeus_graph import Plan, json_file
from zeus_trt.zeus_graph.calibrated_plan import MEAN

_COST_RUNS = 3
_NUMBERS = ("num_trajectories", "num_validation", "num_held_out")


@dataclass(frozen=True)
class TaskOptions:
    """How a model is calibrated, as the command line names it.

    Args:
        steps: Solver steps.
        solver: As ``name_solver`` takes it; or several, which one plan is to serve.
        backend: Which engine; by default the bundle's graph, else the eager model.
        num_trajectories: Full runs to record.
        probes: As in ``Task``.
        num_validation: Samples that choose among the candidates.
        num_held_out: Samples that measure the winner.
        max_calls: As in ``Task``.
        trajectories: A file of the recorded trajectories, which a resumed calibration reads. By default it is in the
            folder ``calibration`` of the bundle, named by all that determines it.
        keep_beside: The result; the trajectories are kept beside it where there is no bundle.
        seed: Of the search.
        cost: ``q=0.55``: the bundle's quantized graph is used too, and a call of it costs so much of a call of the full
            one; ``q=measured`` measures that here.
        on_calls: Called after every batch with its number of denoiser evaluations.
        objective: As in ``Task``.

    Raises:
        ZeusError: No solver, or a number out of range.
    """

    steps: int = 50
    solver: Any = "default"
    backend: str | None = None
    num_trajectories: int = 16
    probes: bool = True
    num_validation: int = 16
    num_held_out: int = 32
    max_calls: int | None = None
    trajectories: Path | None = None
    keep_beside: Path | None = None
    seed: int = 0
    cost: str | None = None
    on_calls: Callable[[int], Any] | None = None
    objective: str = MEAN

    def __post_init__(self) -> None:
        if not self.solver:
            raise ZeusError("solver: got none; expected one at least. Name it, or leave the option out.")
        object.__setattr__(self, "solver", name_solvers(self.solver))
        for name in _NUMBERS:
            check_count(name, getattr(self, name), 1)
        check_run(self.steps, sum(getattr(self, name) for name in _NUMBERS), self.seed)


def open_task(workload: SessionWorkload | PipelineWorkload, options: TaskOptions) -> Task:
    """Makes the task of a workload, and finds the place of its trajectories.

    Args:
        workload: The model.
        options: Solver, samples, engine.

    Raises:
        ZeusError: A solver that cannot be traced.
    """
    bundle, beside = workload.bundle, options.keep_beside
    backend = options.backend or (bundle.manifest.base_backend if bundle else EAGER)
    solvers = options.solver
    setting = make_full_setting(workload, options.steps, solvers[0], backend)
    task = Task(
        workload, setting, Samples(*(getattr(options, name) for name in _NUMBERS)), trajectories=options.trajectories,
        max_calls=options.max_calls, seed=options.seed, on_calls=options.on_calls, probes=options.probes,
        quantized_cost=None if options.cost is None else _read_cost(options.cost, workload, setting),
        solvers=solvers, objective=options.objective,
        batch=1 if isinstance(workload.describe().get("guidance_scale"), list) else Task.batch,
    )  # fmt: skip
    if task.trajectories is None and (bundle or beside):
        key = json_file.digest(make_tag(workload, task.programs[solvers[0]], setting, **task.recorded))[:16]
        if bundle:
            task = replace(task, trajectories=bundle.path / "calibration" / f"{key}.npz")
        elif beside:
            task = replace(task, trajectories=beside.with_name(f"{beside.stem}-{key}.npz"))
    return task


def _read_cost(text: str, workload: Workload, setting: Setting) -> float:
    if text == "q=measured":
        return measure_quantized_cost(workload, setting)
    name, _, value = text.partition("=")
    with suppress(ValueError):
        if name == "q" and 0 < float(value) <= 1:
            return float(value)
    raise ZeusError(
        f"cost: got {text!r}; expected q=measured, or a number above 0 and at most 1 such as q=0.55. Write one of them."
    )


def measure_quantized_cost(workload: Workload, setting: Setting) -> float:
    """What a call of the quantized engine takes here, in calls of the full one: the median of a few runs of both."""
    plan = Plan("FQ" * (len(setting.plan) // 2) + "F" * (len(setting.plan) % 2))
    found = []
    for _ in range(_COST_RUNS + 1):  # the first calls of an engine allocate
        bound = workload.run(replace(setting, plan=plan), range(1)).report.speedup_bound
        found.append((len(plan) / bound - plan.steps.count("F")) / plan.steps.count("Q"))
    return median(found[1:])
