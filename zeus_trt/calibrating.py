"""Calibration in one call."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.calibration.calibrate import Task
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
            ``trajectories``, ``seed`` ...

    Raises:
        ZeusError: No goal or several, an impossible one, a model that does not open, or a place that cannot be written.
    """
    from zeus_trt.calibration.goals import Goal, reach
    from zeus_trt.files import check_place

    goal = Goal(nfe, speedup, min_psnr)
    place = None if output is None else Path(output)
    if place:
        check_place(place)
    task = open_task(model, keep_beside=place, **options)
    found = reach(task, goal)
    if place:
        found.save(place)
    return found


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
