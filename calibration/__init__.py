"""Finds the best plan for a model and a budget from the model's own trajectories."""

from zeus_trt.calibration.calibrate import calibrate

__all__ = ["calibrate"]
