"""Calibration in one call."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan


def calibrate(
    model: str | os.PathLike,
    *,
    nfe: int | None = None,
    speedup: float | None = None,
    min_psnr: float | None = None,
    output: str | os.PathLike | None = None,
    prompts: str | os.PathLike | None = None,
    labels: Sequence[int] | None = None,
    **settings: Any,
) -> "CalibratedPlan":
    """Finds the best plan for a model, its solver and a budget, from a few of its own trajectories.

    The plan runs wherever a plan is taken, as ``calibrate(...).plan``, or later as ``load_plan(output)``.

    Args:
        model: A bundle, a pipeline folder, or a pipeline's id on the hub.
        nfe: The goal: so many full steps. Give one of three.
        speedup: The goal: evaluations / full steps, at least.
        min_psnr: The goal: PSNR in dB to the full run, at least.
        output: A .json file to write the plan to.
        prompts: For pipelines: a file with a prompt per line.
        labels: Class labels of the samples, in turn; all by default.
        **settings: More fields of ``zeus_trt.calibration.task.TaskOptions``: ``steps``, ``solver``, ``backend``,
            ``guidance_scale``, ``trajectories``, ``seed`` ...

    Raises:
        ZeusError: No goal or several, an impossible one, a model that does not open, or a place that cannot be written.
    """
    from zeus_trt.calibration.goals import Goal, reach
    from zeus_trt.calibration.task import TaskOptions, open_task
    from zeus_trt.files import check_place

    goal = Goal(nfe, speedup, min_psnr)
    place = None if output is None else Path(output)
    if place:
        check_place(place)
    file = None if prompts is None else Path(prompts)
    task = open_task(os.fspath(model), TaskOptions(prompts=file, labels=labels, keep_beside=place, **settings))
    found = reach(task, goal)
    if place:
        found.save(place)
    return found
