"""Policies: which steps of a trajectory run the denoiser, and what stands in for the output of the others.

while not done:
    policy.see(step, latents)
    if policy.is_full(step):
        policy.take(step, denoiser(...))
    else:
        output = policy.predict(step)
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import last_uses
from zeus_trt.zeus_graph.row_table import Row, Sample, Source, step_of


class Policy(Protocol):
    """What decides at run time which steps are full.

    A policy belongs to one trajectory. Steps come in order, each either ``take`` (full) or ``predict`` (skipped).

    Args:
        plan: The steps so far, and what is expected of those ahead. Whoever runs the trajectory may replace it by
            ``plan.with_full(step)`` for a step ahead, where the policy allows it.
    """

    plan: Plan

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Sees the sample before ``step``, (batch, ...), once and before all else of that step.

        A policy that decides by samples does so here, and writes its letter into ``plan``; it keeps copies only. In a
        pipeline such a policy has the attribute ``decides = True``, and sees what the scheduler made at the step
        before; others see the sample that the scheduler is given.
        """

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""

    def take(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        """Takes the denoiser's output at a full step, any shape, floating point; a copy is kept if need be.

        A policy that decides by row overwrites the rows that skip this step.

        Returns:
            The drift, where it is measured and the step follows skipped ones: the relative distance between the output
            and its prediction, a tensor () on the device.
        """

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""


PolicyMaker = Callable[[Plan, Sequence[float] | None], Policy]
"""Makes the policy of a trajectory, for its plan and the abscissa of every step (see ``Predictor.rows``)."""


class StaticPolicy:
    """The plan as it is written.

    It keeps copies of just the outputs that a later prediction reads: two for the zeus rules, none when every step is
    full. Steps ahead may be made full where the predictor is a table. Where an output has another shape, the next step
    becomes full, and so do those whose rows read outputs of the old shape.

    Args:
        plan: The plan, with its predictor.
        grid: Abscissa of every step, for linear-grid and lagrange-k (see ``Predictor.rows``).
    """

    def __init__(self, plan: Plan, grid: Sequence[float] | None = None):
        self.plan = plan
        self._rows = plan.rule.rows(plan, grid)
        self._last_use = last_uses(self._rows)
        self._kept: dict[int | Sample, torch.Tensor] = {}
        self._shape: torch.Size | None = None
        self._step = 0

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Keeps a copy of the sample if a prediction will read it."""
        if Sample(step) in self._last_use:
            self._kept[Sample(step)] = latents.clone()

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self.plan.is_full(step)

    def take(self, step: int, output: torch.Tensor) -> None:
        """Takes the denoiser's output at a full step; copied if a prediction will read it."""
        self._advance(step, full=True)
        if self._shape not in (None, output.shape):
            self._forget(step)
        self._shape = output.shape
        if step in self._last_use:
            self._kept[step] = output.clone()

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""
        self._advance(step, full=False)
        output = combine(self._rows[step] or {}, self._kept)
        if step in self._last_use:
            self._kept[step] = output.clone()
        self._kept = {source: kept for source, kept in self._kept.items() if self._last_use[source] > step}
        return output

    def _advance(self, step: int, full: bool) -> None:
        if step != self._step or full != self.plan.is_full(step):
            raise ValueError(
                f"step {step} ({'full' if full else 'skipped'}) is out of turn: the plan {self.plan} is at step "
                f"{self._step}"
            )
        self._step += 1

    def _forget(self, step: int) -> None:
        """Begins anew at ``step``."""
        self._kept = {source: kept for source, kept in self._kept.items() if source == Sample(step)}
        self.plan = self.plan.with_full(step + 1)
        for later, row in enumerate(self._rows):
            if row and later > step > min(map(step_of, row)):
                self.plan = self.plan.with_full(later)


class OpenPolicy:
    """A plan whose steps ahead may be made full at any time, such as where another expert takes over.

    It keeps up to six outputs (more for rules that read more), of one shape, and samples where the rule reads them.
    Where an output has another shape it begins anew, and the next step is full too: one output makes no line.

    Args:
        plan: The plan, with its predictor.
        grid: Abscissa of every step, or None.

    Raises:
        ZeusError: A predictor that cannot fill the plan.
    """

    def __init__(self, plan: Plan, grid: Sequence[float] | None = None):
        plan.rule.rows(plan, grid)
        self.plan = plan
        self._grid = None if grid is None else [*grid, grid[-1]]
        self._kept: dict[Source, torch.Tensor] = {}
        self._full: deque[int] = deque(maxlen=plan.rule.memory)  # steps that were

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Keeps a copy of the sample if predictions may read it."""
        if self.plan.rule.reads_samples:
            self._kept[Sample(step)] = latents.clone()

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self.plan.is_full(step)

    def take(self, step: int, output: torch.Tensor) -> None:
        """Takes the output of a full step, of any shape."""
        if any(kept.shape != output.shape for kept in self._kept.values()):
            self._kept = {source: kept for source, kept in self._kept.items() if source == Sample(step)}
            self._full.clear()
            self.plan = self.plan.with_full(step + 1)
        self._keep(step, output.clone())

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""
        output = self._fill(step, self.plan.steps[step])
        self._keep(step, output.clone())
        return output

    def _fill(self, step: int, letter: str) -> torch.Tensor:
        return combine(self.plan.rule.row(step, letter, tuple(self._full), len(self.plan), self._grid), self._kept)

    def _keep(self, step: int, output: torch.Tensor) -> None:
        self._kept[step] = output
        if self.plan.is_full(step):
            self._full.append(step)
        reach, t = self.plan.rule.reach, self._full[-1]
        needed = {*self._full, *range(t - reach, t), *range(step - reach + 1, step + 1), *map(Sample, self._full)}
        self._kept = {source: kept for source, kept in self._kept.items() if source in needed}


def combine(row: Row, outputs: Mapping[Source, torch.Tensor]) -> torch.Tensor:
    """The weighted sum of outputs and samples, a new tensor."""
    (source, weight), *others = row.items()
    combined = outputs[source] * weight
    for source, weight in others:
        combined.add_(outputs[source], alpha=weight)
    return combined
