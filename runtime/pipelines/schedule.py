"""The schedule of a pipeline's run, as its scheduler has it."""

from typing import Any

import torch

from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.noise_grid import measure_scheduler


def count_evaluations(scheduler: Any, timestep: Any, given: int | None) -> int:
    """Evaluations from a first ``timestep`` on: the pipeline's own count, else to the end of the schedule."""
    return given or len(scheduler.timesteps) - _find_begin(scheduler, timestep)


def _find_begin(scheduler: Any, timestep: Any) -> int:
    begin = getattr(scheduler, "begin_index", None)
    if begin is not None:
        return begin
    timesteps = scheduler.timesteps.tolist()
    first = float(torch.as_tensor(timestep).flatten()[0])
    return timesteps.index(first) if first in timesteps else 0


def read_grid(scheduler: Any, timestep: Any, plan: Plan) -> list[Any] | None:
    """The abscissa of each step from a first ``timestep`` on, as the plan's predictor measures it."""
    begin = _find_begin(scheduler, timestep)
    timesteps = [float(time_) for time_ in scheduler.timesteps[begin:].tolist()]
    grid = measure_scheduler(plan.rule, scheduler, timesteps, begin)
    return None if grid is None else list(grid[: len(plan)])
