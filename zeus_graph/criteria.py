"""Published criteria as policies: whether a step may be skipped is decided as the trajectory runs.

A batch is decided on as a whole: the means go over all of its rows, as in the authors' code. Each decision reads one
number from the device.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch

from zeus_trt.zeus_graph.plan import Plan


class CriterionPolicy:
    """Skips a step where a criterion allows it, up to a number of steps in a row. The last step is full.

    Args:
        plan: Its skipped steps count as full. ``plan`` then has the letters of the steps so far; all steps ahead are
            full in it.
        limit: Skipped steps in a row, at most.
    """

    def __init__(self, plan: Plan, limit: int):
        self.plan = Plan("".join("Q" if letter == "Q" else "F" for letter in plan.steps))
        self._limit, self._skipped = limit, 0
        self._outputs: deque[torch.Tensor] = deque(maxlen=3)  # of the last steps, a skipped one has that before it

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Decides on ``step``."""
        allowed = self._allows(step, latents)
        if allowed and self._skipped < self._limit and 0 < step < len(self.plan) - 1:
            steps = self.plan.steps
            self.plan = replace(self.plan, steps=f"{steps[:step]}{self._letter}{steps[step + 1 :]}")

    def is_full(self, step: int) -> bool:
        """Whether the denoiser must run at ``step``."""
        return self.plan.is_full(step)

    def take(self, step: int, output: torch.Tensor) -> None:
        """Takes the output of a full step; it keeps a copy."""
        self._outputs.append(output.clone())
        self._skipped = 0

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""
        self._outputs.append(self._outputs[-1])
        self._skipped += 1
        return self._outputs[-1].clone()

    @property
    def _letter(self) -> str:
        return "R"

    def _allows(self, step: int, latents: torch.Tensor) -> bool:
        raise NotImplementedError


class AdaptivePolicy(CriterionPolicy):
    """AdaptiveDiffusion (Ye et al., 2024): reuses the last output while the samples move evenly.

    With d_i the mean of |x_i - x_(i-1)|, x_i the sample before step i, step i is skipped while
    |(d_i + d_(i-2)) / 2 - d_(i-1)| <= threshold * d_(i-1): the third difference of the samples is small.

    Args:
        plan: As in ``CriterionPolicy``.
        grid: Not used.
        threshold: The authors take 0.01 for pictures.
        limit: Skipped steps in a row, at most; the authors' 4.
    """

    def __init__(self, plan: Plan, grid: Sequence[float] | None = None, threshold: float = 0.01, limit: int = 4):
        super().__init__(plan, limit)
        self._threshold = threshold
        self._before: torch.Tensor | None = None
        self._moves: deque[float] = deque(maxlen=3)

    def _allows(self, step: int, latents: torch.Tensor) -> bool:
        if self._before is not None:
            self._moves.append(float((latents - self._before).abs().mean()))
        self._before = latents.clone()
        if len(self._moves) < 3:
            return False
        first, middle, last = self._moves
        return abs((first + last) / 2 - middle) <= self._threshold * middle


class SadaPolicy(CriterionPolicy):
    """SADA (Jiang et al., 2025) for flow models, as its published code does it, without its pruning of tokens.

    From the step 0.2 N on step i + 1 is skipped while mean(f_i - 2 f_(i-1) + f_(i-2)) >= 0, f the outputs; from 0.4 N
    on all but one of every ``interval``; from 0.94 N on no more. These are the authors' steps 10, 20 and 47 of 50. The
    first skipped step in a row gets 2 f_i - f_(i-1), the others the last output again.

    The paper multiplies the second difference with x_(i+1) minus its Adams extrapolation. For Euler on a flow that is
    -3/8 of the second difference times the step, so the mean is never positive, and says nothing.

    Args:
        plan: As in ``CriterionPolicy``.
        grid: Not used.
        interval: The most skipped steps in a row, and the interval of full ones later; the authors' 4.
    """

    def __init__(self, plan: Plan, grid: Sequence[float] | None = None, interval: int = 4):
        super().__init__(plan, interval)
        self._interval = interval
        self._begin, self._even, self._end = (ceil(part * len(plan)) for part in (0.2, 0.4, 0.94))
        self._used: torch.Tensor | None = None

    def take(self, step: int, output: torch.Tensor) -> None:
        """Takes the output of a full step; it keeps a copy."""
        super().take(step, output)
        self._used = self._outputs[-1]

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""
        slope = self._outputs[-1] - self._outputs[-2]
        self._used = super().predict(step) + slope
        return self._used.clone()

    @property
    def _letter(self) -> str:
        return "R" if self._skipped else "X"

    def _allows(self, step: int, latents: torch.Tensor) -> bool:
        done = step - 1
        if len(self._outputs) < 3 or not self._begin <= done < self._end:
            return False
        if done >= self._even:
            return done % self._interval != 0
        assert self._used is not None
        return float((self._used - 2 * self._outputs[1] + self._outputs[0]).mean()) >= 0
