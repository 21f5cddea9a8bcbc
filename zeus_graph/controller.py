"""The state machine of step mode."""

from collections.abc import Sequence

import torch

from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor, choose_predictor, last_uses


class StepController:
    """Says for each step whether the denoiser runs, and predicts the outputs it skips.

    One controller belongs to one trajectory. Steps come in order, each either
    ``take`` (full) or ``predict`` (skipped). It keeps copies of just the outputs that
    a later prediction reads: two for the zeus rules, none when every step is full.

    Args:
        plan: The step plan.
        predictor: Name of a predictor, or a ``Predictor``; by default the plan's, else ``zeus``.
        grid: Abscissa of every step, for linear-grid and lagrange-k (see ``Predictor.rows``).
    """

    def __init__(self, plan: Plan, predictor: str | Predictor | None = None, grid: Sequence[float] | None = None):
        self.plan = plan
        self._rows = choose_predictor(plan, predictor).rows(plan, grid)
        self._last_use = last_uses(self._rows)
        self._kept: dict[int, torch.Tensor] = {}
        self._step = 0

    @property
    def num_kept(self) -> int:
        """Number of outputs held at the moment."""
        return len(self._kept)

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self.plan.is_full(step)

    def take(self, step: int, output: torch.Tensor) -> None:
        """Takes the denoiser's output at a full step; copied if a prediction will read it.

        Args:
            step: The current step.
            output: Denoiser output after guidance, any shape, floating point.
        """
        self._advance(step, full=True)
        if step in self._last_use:
            self._kept[step] = output.clone()

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor of the caller's own."""
        self._advance(step, full=False)
        terms = [(self._kept[source], weight) for source, weight in (self._rows[step] or {}).items()]
        output, weight = terms[0]
        output = output.clone() if weight == 1.0 else output * weight
        for kept, weight in terms[1:]:
            output.add_(kept, alpha=weight)
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
