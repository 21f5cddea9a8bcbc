"""How a plan does at a guidance that it was not calibrated with."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_trt.calibration.calibrate import Task
from zeus_trt.calibration.goals import check_plan
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, is_made_for


@dataclass(frozen=True)
class Transfer:
    """A plan, measured at several guidance scales.

    Args:
        made: The guidance scale that it was calibrated with, or the range; None without guidance.
        scales: Guidance scales.
        checked: The plan with its figures at each of them.
    """

    made: float | Sequence[float] | None
    scales: tuple[float, ...]
    checked: tuple[CalibratedPlan, ...]

    def describe(self) -> str:
        """A table for the terminal."""
        plan, count = self.checked[0].chosen.plan, self.checked[0].numbers["held_out"][1]
        lines = [plan.describe(), f"PSNR in dB on {count} held-out samples", "guidance  plan  best uniform  gain"]
        for scale, one in zip(self.scales, self.checked, strict=True):
            own, other = one.chosen.psnr_db, one.uniform[0].psnr_db
            note = "  calibrated here" if is_made_for(self.made, scale) else ""
            lines.append(f"{scale:<8g}  {own:4.1f}  {other:12.1f}  {own - other:+4.1f}{note}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [
            {"guidance_scale": scale, "psnr_db": one.chosen.psnr_db, "uniform_db": one.uniform[0].psnr_db}
            for scale, one in zip(self.scales, self.checked, strict=True)
        ]
        plan = self.checked[0].chosen.plan
        return json_file.plain({"plan": plan.to_json(), "calibrated_with": self.made, "rows": rows})

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON file, whole or not at all."""
        json_file.save(path, self.to_json())


def measure_transfer(open_task: Callable[[float], Task], found: CalibratedPlan, scales: Sequence[float]) -> Transfer:
    """Measures a plan, and the uniform ones beside it, at several guidance scales.

    A calibrated plan runs only with its solver and number of steps: the weights of each step are for that schedule.

    Args:
        open_task: Opens the model with a guidance scale.
        found: The plan.
        scales: Guidance scales, one at least.

    Raises:
        ZeusError: The plan belongs to another model, solver or number of steps.
    """
    checked = tuple(check_plan(open_task(scale), found) for scale in scales)
    return Transfer(found.workload.get("guidance_scale"), tuple(scales), checked)
