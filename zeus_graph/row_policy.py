"""Policies that decide for each row of a batch separately.

A step of the batch is full if one of its rows needs it. The other rows keep their predictions, so that each equals its
separate run, and need not be in the call.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.policy import combine
from zeus_trt.zeus_graph.row_table import Row, Sample, Source


class RowPolicy:
    """Rows with a plan each, which may change ahead of the step that runs.

    It keeps the outputs that the predictor reads, of the whole batch and of one shape, and samples where it reads
    these. Where an output has another shape all rows begin anew, and the next step is full.

    Args:
        plan: What every row begins with, with the predictor.
        grid: Abscissa of every step, or None.

    Raises:
        ZeusError: A predictor that cannot fill the plan.
    """

    decides = False
    """Whether samples decide: ``see`` then comes before the step that it is about begins, once."""

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None):
        plan.rule.rows(plan, grid)
        self._grid = None if grid is None else [*grid, grid[-1]]
        self._kept: dict[Source, torch.Tensor] = {}
        self._union = plan
        self._seen: torch.Size | None = None  # shape of the samples
        self._plans: list[Plan] = []  # one a row, known with the first tensor
        self._full: list[deque[int]] = []  # the last full steps of every row

    @property
    def plan(self) -> Plan:
        """The steps so far, and what is expected: full where one row is. Setting it makes steps ahead full."""
        return self._union

    @plan.setter
    def plan(self, plan: Plan) -> None:
        for step in plan.full_steps:
            if not self._union.is_full(step):
                self._change({row: made.with_full(step) for row, made in enumerate(self._plans)})
                self._union = self._union.with_full(step)

    @property
    def row_plans(self) -> tuple[str, ...]:
        """The steps of every row, in letters."""
        return tuple(str(plan) for plan in self._plans)

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Sees the sample before ``step``, (batch, ...); keeps a copy if predictions may read it."""
        if self._seen not in (None, latents.shape):  # another batch
            self._restart(step, len(latents))
        self._seen = latents.shape
        self._welcome(step, len(latents))
        if self._union.rule.reads_samples:
            self._kept[Sample(step)] = latents.clone()

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self._union.is_full(step)

    def list_full(self, step: int) -> list[int]:
        """The rows that need the denoiser at ``step``; whatever ``take`` is passed for others is overwritten."""
        return [row for row, plan in enumerate(self._plans) if plan.is_full(step)]

    def take(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        """Takes the output of a full step, and overwrites its rows that skip this step by their predictions.

        Returns:
            The largest drift of a row, a tensor (), where it is measured and a row comes from skipped steps.
        """
        if any(kept.shape != output.shape for kept in self._kept.values()):
            self._restart(step, len(output))
        self._welcome(step, len(output))
        skipped = [row for row, plan in enumerate(self._plans) if not plan.is_full(step)]
        drift = self._measure(step, output)
        if skipped:
            output[skipped] = self._fill(step, skipped, [self._plans[row].steps[step] for row in skipped])
        self._keep(step, output.clone())
        return drift

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a step that all rows skip, a tensor that the caller may overwrite."""
        output = self._fill(step, [*range(len(self._plans))], [plan.steps[step] for plan in self._plans])
        self._keep(step, output.clone())
        return output

    def _measure(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        return None

    def _welcome(self, step: int, count: int) -> None:
        if not self._plans:
            self._plans = [self._union] * count
            self._full = [deque(maxlen=self._union.rule.memory) for _ in range(count)]
        elif len(self._plans) != count:  # another batch
            self._restart(step, count)

    def _restart(self, step: int, count: int) -> None:
        """All rows begin anew at ``step``, a full one."""
        self._kept = {source: kept for source, kept in self._kept.items() if source == Sample(step)}
        self._plans, self._union = [], self._union.with_full(step).with_full(step + 1)
        self._forget()
        self._welcome(step, count)

    def _forget(self) -> None:
        """Another batch: what a criterion has seen is of the one before."""

    def _change(self, plans: dict[int, Plan]) -> None:
        """Rows follow other plans from now on."""
        for row, plan in plans.items():
            self._plans[row] = plan
        if not self._plans:
            return
        columns = zip(*(plan.steps for plan in self._plans), strict=True)
        letters = (next((letter for letter in column if letter in "FQ"), column[0]) for column in columns)
        self._union = Plan("".join(letters), self._union.predictor, self._union.source, self._union.calibration)

    def _fill(self, step: int, rows: Sequence[int], letters: Sequence[str]) -> torch.Tensor:
        """(rows, ...): the predictions of some rows; rows of equal weights are predicted together."""
        groups: dict[tuple[tuple[Source, float], ...], list[int]] = {}
        for place, (row, letter) in enumerate(zip(rows, letters, strict=True)):
            rule, count = self._union.rule, len(self._union)
            weights: Row = rule.row(step, letter, tuple(self._full[row]), count, self._grid)
            groups.setdefault(tuple(weights.items()), []).append(place)
        if len(groups) == 1 and len(rows) == len(self._plans):
            return combine(dict(next(iter(groups))), self._kept)
        parts = []
        for terms, places in groups.items():
            chosen = [rows[place] for place in places]
            parts.append(combine(dict(terms), {source: self._kept[source][chosen] for source, _ in terms}))
        order = [place for places in groups.values() for place in places]
        return torch.cat(parts)[torch.tensor(order).argsort().tolist()]

    def _keep(self, step: int, output: torch.Tensor) -> None:
        self._kept[step] = output
        reach = self._union.rule.reach
        needed: set[Source] = {*range(step - reach + 1, step + 1)}
        for plan, full in zip(self._plans, self._full, strict=True):
            if plan.is_full(step):
                full.append(step)
            needed |= {*full, *range(full[-1] - reach, full[-1]), *map(Sample, full)}
        self._kept = {source: kept for source, kept in self._kept.items() if source in needed}


class DriftPolicy(RowPolicy):
    """Compares, at each full step of a row after skipped ones, its output with its prediction.

    A row whose drift is above the threshold runs its next step too, if it was to be skipped, and the rest of its block
    alternates anew.

    Args:
        plan: The plan, with its predictor.
        grid: Abscissa of every step, or None.
        threshold: Relative distance of a row; infinity measures only, a smaller one waits for the device, once at each
            such step.

    Raises:
        ZeusError: A predictor that has rows for one plan only, or cannot fill the plan.
    """

    setting = "threshold"

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None, threshold: float = math.inf):
        if plan.rule.table is not None:
            raise ZeusError(
                "drift_threshold: got a predictor table, which says nothing at full steps; expected a rule such as "
                "zeus. Leave drift_threshold out."
            )
        super().__init__(plan, grid)
        self._threshold = threshold

    def _measure(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        rows = [
            row
            for row, (plan, full) in enumerate(zip(self._plans, self._full, strict=True))
            if full and plan.is_full(step) and not plan.is_full(step - 1)
        ]
        if not rows:
            return None
        gaps = [step - self._full[row][-1] for row in rows]
        pairs = zip(rows, gaps, strict=True)
        letters = ["X" if gap % 2 == 1 and len(self._full[row]) > 1 else "R" for row, gap in pairs]
        found = output if len(rows) == len(self._plans) else output[rows]
        error = (found - self._fill(step, rows, letters)).reshape(len(rows), -1).norm(dim=1)
        drift = (error / found.reshape(len(rows), -1).norm(dim=1)).float()
        if math.isfinite(self._threshold):
            late = [row for row, value in zip(rows, drift.tolist(), strict=True) if value > self._threshold]
            if late:
                self._change({row: self._plans[row].with_full(step + 1) for row in late})
        return drift.max()
