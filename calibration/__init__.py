"""Finds the best plan for a model and a budget from the model's own trajectories."""

from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.goals import Goal, reach

__all__ = ["Goal", "Samples", "Task", "reach"]
