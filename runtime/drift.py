"""How far predictions are off, measured while a trajectory runs."""

import math
from collections import deque
from collections.abc import Sequence

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, Predictor

_KEPT_FULL = 4  # lagrange-4 reads no more


class DriftController:
    """A ``StepController`` that compares, at each full step after skipped ones, the output with its prediction.

    It keeps up to six outputs, of one shape: an output of another shape begins anew. A step whose drift is above
    the threshold makes the next step full too, if it was to be skipped, and the rest of its block alternates anew.

    Args:
        plan: The step plan.
        predictor: The rule that fills skipped steps.
        grid: Abscissa of every step, or None.
        threshold: Relative distance; infinity measures only, a smaller one waits for the device at each such step.
            None measures nothing: full steps may still be inserted into ``plan``.

    Raises:
        ZeusError: A predictor that has rows for one plan only.
    """

    def __init__(self, plan: Plan, predictor: Predictor, grid: Sequence[float] | None, threshold: float | None):
        if predictor.table is not None:
            raise ZeusError(
                "drift_threshold: got a predictor table, which says nothing at full steps; expected a rule such as "
                "zeus. Leave drift_threshold out."
            )
        self.plan = plan
        self._predictor = predictor
        self._grid = None if grid is None else [*grid, grid[-1]]
        self._threshold = threshold
        self._outputs: dict[int, torch.Tensor] = {}
        self._full: deque[int] = deque(maxlen=_KEPT_FULL)  # steps that were

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self.plan.is_full(step)

    def take(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        """Takes the output of a full step; returns its drift (), on the device, if the step follows skipped ones."""
        if any(kept.shape != output.shape for kept in self._outputs.values()):
            self._outputs.clear()
            self._full.clear()
        drift = None
        if self._threshold is not None and self._full and not self.plan.is_full(step - 1):
            drift = ((output - self._fill(step)).norm() / output.norm()).float()
            if math.isfinite(self._threshold) and float(drift) > self._threshold:
                self.plan = insert_full(self.plan, step + 1)
        self._keep(step, output.clone())
        return drift

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor of the caller's own."""
        output = self._fill(step, self.plan.steps[step])
        self._keep(step, output.clone())
        return output

    def _fill(self, step: int, letter: str | None = None) -> torch.Tensor:
        full = tuple(self._full)
        odd = (step - full[-1]) % 2 == 1
        letter = letter or ("X" if odd and len(full) > 1 else "R")
        row = self._predictor.row(step, letter, full, self._grid)
        (source, weight), *others = row.items()
        output = self._outputs[source] * weight
        for source, weight in others:
            output.add_(self._outputs[source], alpha=weight)
        return output

    def _keep(self, step: int, output: torch.Tensor) -> None:
        self._outputs[step] = output
        if self.plan.is_full(step):
            self._full.append(step)
        needed = {*self._full, self._full[-1] - 1, step}
        self._outputs = {source: kept for source, kept in self._outputs.items() if source in needed}


def insert_full(plan: Plan, step: int) -> Plan:
    """Makes ``step`` full if it was to be skipped, and the skipped steps after it alternate from X again."""
    if step >= len(plan) or plan.is_full(step):
        return plan
    end = plan.steps.index("F", step)
    rest = "".join("XR"[i % 2] for i in range(end - step - 1))
    return Plan(f"{plan.steps[:step]}F{rest}{plan.steps[end:]}")
