"""Calibration in one call."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError

if TYPE_CHECKING:
    from zeus_trt.calibration.calibrate import Task
    from zeus_trt.calibration.gate import Gate
    from zeus_trt.calibration.goals import Goal
    from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan


def calibrate(
    model: str | os.PathLike,
    *,
    nfe: int | None = None,
    speedup: float | None = None,
    min_psnr: float | None = None,
    output: str | os.PathLike | None = None,
    **options: Any,
) -> "CalibratedPlan":
    """Finds the best plan for a model, its solver and a budget, from a few of its own trajectories.

    The plan runs wherever a plan is taken, as ``calibrate(...).plan``, or later as ``load_plan(output)``.

    Args:
        model: As in ``open_model``.
        nfe: The goal: so many full steps. Give one of three.
        speedup: The goal: evaluations / full steps, at least.
        min_psnr: The goal: PSNR in dB to the full run, at least.
        output: A .json file to write the plan to.
        **options: As in ``open_task``: ``steps``, ``solver``, ``backend``, ``labels``, ``guidance_scale``,
            ``objective``, ``trajectories``, ``seed`` ...

    Raises:
        ZeusError: No goal or several, an impossible one, a model that does not open, or a place that cannot be written.
    """
    from zeus_trt.calibration.goals import Goal

    return run_calibration(model, output, Goal(nfe, speedup, min_psnr), **options)


def run_calibration(
    model: str | os.PathLike,
    output: str | os.PathLike | None,
    goal: "Goal | None" = None,
    check: str | os.PathLike | None = None,
    check_guidance: Sequence[float] = (),
    say: Callable[[str], Any] = lambda text: None,
    **options: Any,
) -> Any:
    """Finds the plan of a goal, measures a plan on new samples, or without either finds the plans of many budgets.

    The last become the menu of a bundle.

    Args:
        model: As in ``open_model``.
        output: The file of the result: a .json of a plan, a .csv of many, beside which the plot goes.
        goal: What the plan has to reach.
        check: The file of a plan to measure.
        check_guidance: Guidance scales to measure it at, instead of one.
        say: Called with a sentence on the recorded trajectories.
        **options: As in ``open_task``.

    Returns:
        A ``CalibratedPlan``; of many budgets a ``Pareto``; of many guidance scales a ``Transfer``.

    Raises:
        ZeusError: A place that cannot be written, an impossible goal, or a model that does not open.
    """
    from zeus_trt.calibration.goals import check_plan, reach
    from zeus_trt.calibration.pareto import trace_pareto
    from zeus_trt.calibration.transfer import measure_transfer
    from zeus_trt.export.folder import add_plans
    from zeus_trt.runtime.menu import FOLDER
    from zeus_trt.zeus_graph import json_file
    from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan

    place = None if output is None else Path(output)
    if place:
        _prepare(place, is_curve=goal is None and check is None)
    result: Any
    if check and check_guidance:
        result = measure_transfer(
            lambda scale: open_task(model, **{**options, "guidance_scale": scale}),
            CalibratedPlan.load(check),
            check_guidance,
        )
        if place:
            result.save(place)
        return result
    task = open_task(model, keep_beside=None if check else place, **options)
    if task.trajectories and not check:
        say(f"trajectories are kept in {task.trajectories}: an interrupted calibration goes on from there")
    if check:
        result = check_plan(task, CalibratedPlan.load(check))
    elif goal:
        result = reach(task, goal)
    else:
        result = trace_pareto(task)
        if bundle := getattr(task.workload, "bundle", None):
            several = {"solvers": task.solvers} if len(task.programs) > 1 else {}
            key = json_file.digest({"setting": str(task.setting), **several, **task.workload.describe()})[:16]
            add_plans(bundle, key, result.plans)
            say(f"{len(result.plans)} plans are in {bundle.path / FOLDER}: run or serve with a min_psnr to choose one")
    if place:
        result.save(place)
    return result


def run_gate(model: str | os.PathLike, plan: str | os.PathLike, min_psnr: float, **options: Any) -> "Gate":
    """Measures a plan against a floor of quality; ``check`` of the result raises where it is not reached.

    Args:
        model: As in ``open_model``.
        plan: As ``load_plan`` takes it.
        min_psnr: PSNR in dB to the full run, at least.
        **options: As in ``open_task``.

    Raises:
        ZeusError: A model or a plan that does not open, or a plan of another model, solver or number of steps.
    """
    from zeus_trt.calibration.gate import measure_gate
    from zeus_trt.zeus_graph import choose_plan

    planner = choose_plan(plan)
    return measure_gate(open_task(model, **options), planner, min_psnr)


def _prepare(output: Path, is_curve: bool) -> None:
    """Refuses a place for the result before the work, and makes its folder."""
    from zeus_trt.files import check_place

    name = output.name or output
    if output.suffix != ".json" and not is_curve:
        raise ZeusError(f"output: got {name}; expected a plan's name such as plan.json. Change the ending.")
    if is_curve and output.suffix not in ("", ".csv", ".png"):
        raise ZeusError(
            f"output: got {name}; expected a name such as curve.csv, beside which the plot goes. Change the ending."
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    for file in (output, *((output.with_suffix(".csv"), output.with_suffix(".png")) if is_curve else ())):
        check_place(file)


def open_task(model: str | os.PathLike, *, prompts: str | os.PathLike | None = None, **options: Any) -> "Task":
    """Opens a model for a calibration.

    Args:
        model: As in ``open_model``.
        prompts: For pipelines: a file with a prompt per line; sample k takes line k, in turn.
        **options: Of ``TaskOptions`` and of ``ModelOptions``.

    Raises:
        ZeusError: As ``open_model``, or a number out of range.
    """
    from zeus_trt.calibration import task
    from zeus_trt.open_model import ModelOptions, open_model
    from zeus_trt.options import split_options

    options |= {"prompts": Path(prompts)} if prompts else {}
    own, asked = split_options(options, task.TaskOptions, ModelOptions)
    settings = task.TaskOptions(**own)
    return task.open_task(open_model(os.fspath(model), **asked), settings)
