"""Published criteria as policies: whether a row may skip a step is decided as the trajectory runs.

Each decision reads one small tensor from the device, for all rows of the batch.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import torch

from zeus_trt.zeus_graph.counts import check_count
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.row_policy import RowPolicy

_SHORTEST = 2  # steps before the first skipped one


class CriterionPolicy(RowPolicy):
    """Skips a step of a row where a criterion allows it. The last step is full.

    Args:
        plan: Its skipped steps count as full. The policy's ``plan`` then has the letters of the steps so far; all steps
            ahead are full in it.
        grid: Abscissa of every step, as the criterion's ``predictor`` measures it.
        floor: Where the criterion has its say, so many steps are skipped after each full one, whatever it says.
        cap: Skipped steps in a row, at most.

    Raises:
        ZeusError: A floor or a cap that is no whole number from 0 on.
    """

    decides = True
    setting = "threshold"
    predictor = "reuse"
    """The rule that fills skipped steps."""

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None, *, floor: int = 0, cap: int = 4):
        letters = "".join("Q" if letter == "Q" else "F" for letter in plan.steps)
        super().__init__(Plan(letters).with_predictor(self.predictor), grid)
        self._floor, self._cap = check_count("floor", floor, 0), check_count("cap", cap, 0)

    def see(self, step: int, latents: torch.Tensor) -> None:
        """Decides on ``step``, for every row."""
        super().see(step, latents)
        allowed = self._allow(step, latents)
        if allowed is None or not _SHORTEST <= step < len(self.plan) - 1:
            return
        changed = {}
        for row, may_skip in enumerate(allowed):
            skipped = self._count_skipped(row, step)
            if skipped < self._cap and (may_skip or skipped < self._floor):
                steps, letter = self._plans[row].steps, self._choose_letter(skipped)
                changed[row] = replace(self._plans[row], steps=f"{steps[:step]}{letter}{steps[step + 1 :]}")
        if changed:
            self._change(changed)

    def _count_skipped(self, row: int, step: int) -> int:
        """Steps that the row skipped just before ``step``."""
        return step - 1 - self._full[row][-1] if self._full[row] else 0

    def _choose_letter(self, skipped: int) -> str:
        return "R"

    def _allow(self, step: int, latents: torch.Tensor) -> list[bool] | None:
        """Whether each row may skip ``step``; None where the criterion has no say."""
        raise NotImplementedError

    def _ran(self, step: int, output: torch.Tensor) -> torch.Tensor:
        """(batch, 1, ...) bool: the rows that the denoiser ran for."""
        full = torch.tensor([plan.is_full(step) for plan in self._plans], device=output.device)
        return full.reshape(-1, *[1] * (output.ndim - 1))


class AdaptivePolicy(CriterionPolicy):
    """AdaptiveDiffusion (Ye et al., 2024): reuses the last output while the sample moves evenly.

    With d_i the mean of |x_i - x_(i-1)|, x_i the sample before step i, step i is skipped while
    |(d_i + d_(i-2)) / 2 - d_(i-1)| <= threshold * d_(i-1): the third difference of the samples is small.

    Args:
        plan, grid, floor, cap: As in ``CriterionPolicy``; the authors' cap is 4.
        threshold: The authors take 0.01 for pictures.
    """

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None, threshold: float = 0.01, **limits: int):
        super().__init__(plan, grid, **limits)
        self._threshold = threshold
        self._before: torch.Tensor | None = None
        self._moves: deque[torch.Tensor] = deque(maxlen=3)

    def _forget(self) -> None:
        self._before = None
        self._moves.clear()

    def _allow(self, step: int, latents: torch.Tensor) -> list[bool] | None:
        if self._before is not None:
            self._moves.append(_average((latents - self._before).abs()))
        self._before = latents.clone()
        if len(self._moves) < 3:
            return None
        first, middle, last = self._moves
        return (((first + last) / 2 - middle).abs() <= self._threshold * middle).tolist()


class SadaPolicy(CriterionPolicy):
    """SADA (Jiang et al., 2025) for flow models, as its published code does it, without its pruning of tokens.

    From the step 0.2 N on step i + 1 is skipped while mean(f_i - 2 f_(i-1) + f_(i-2)) >= 0, f the outputs; from 0.4 N
    on all but one of every ``interval``; from 0.94 N on no more. These are the authors' steps 10, 20 and 47 of 50. The
    first skipped step in a row gets 2 f_i - f_(i-1), the others the last output again.

    The paper multiplies the second difference with x_(i+1) minus its Adams extrapolation. For Euler on a flow that is
    -3/8 of the second difference times the step, so the mean is never positive, and says nothing.

    Args:
        plan, grid, floor: As in ``CriterionPolicy``.
        interval: The interval of full steps later, a whole number; the authors' 4.
        cap: The most skipped steps in a row; by default the interval.
    """

    setting = "interval"
    predictor = "zeus-previous-full"

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None, interval: float = 4, **limits: int):
        self._interval = check_count("interval", int(interval) if interval == int(interval) else interval, 1)
        super().__init__(plan, grid, **{"cap": self._interval, **limits})
        self._begin, self._even, self._end = (ceil(part * len(plan)) for part in (0.2, 0.4, 0.94))
        self._outputs: deque[torch.Tensor] = deque(maxlen=3)  # of the last steps, a skipped one has that before it
        self._used: torch.Tensor | None = None

    def take(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        """Takes the output of a full step, and overwrites the rows that skip it."""
        real = output.clone()
        drift = super().take(step, output)
        if self._outputs:
            real = torch.where(self._ran(step, output), real, self._outputs[-1])
        self._outputs.append(real)
        self._used = output.clone()
        return drift

    def predict(self, step: int) -> torch.Tensor:
        """Returns the predicted output of a skipped step, a tensor that the caller may overwrite."""
        output = super().predict(step)
        self._outputs.append(self._outputs[-1])
        self._used = output.clone()
        return output

    def _forget(self) -> None:
        self._outputs.clear()

    def _choose_letter(self, skipped: int) -> str:
        return "R" if skipped else "X"

    def _allow(self, step: int, latents: torch.Tensor) -> list[bool] | None:
        done = step - 1
        if len(self._outputs) < 3 or not self._begin <= done < self._end:
            return None
        if done >= self._even:
            return [done % self._interval != 0] * len(latents)
        assert self._used is not None
        return (_average(self._used - 2 * self._outputs[1] + self._outputs[0]) >= 0).tolist()


class EasyCachePolicy(CriterionPolicy):
    """EasyCache (Zhou et al., 2025): skips while the change that the output should have stays small.

    At every step from 0.2 N on k |x_i - x_(i-1)| / |psi_t| is added up, |.| the mean of absolute values, psi_t the last
    full output, and k = |psi_t - psi_p| / |x_t - x_p| from the last two full steps. While the sum is below the
    threshold the step is skipped, and gets m_i + (psi_t - m_t), the rule ``residual``; else it starts again at 0.

    Args:
        plan, grid, floor, cap: As in ``CriterionPolicy``; the authors have no cap.
        threshold: The authors take 0.05 to 0.1 for videos.
    """

    predictor = "residual"

    def __init__(self, plan: Plan, grid: Sequence[Any] | None = None, threshold: float = 0.05, **limits: int):
        super().__init__(plan, grid, **{"cap": len(plan), **limits})
        self._threshold, self._begin = threshold, ceil(0.2 * len(plan))
        self._before: torch.Tensor | None = None
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None  # sample and output of the last full step
        self._rate: torch.Tensor | None = None  # k, (batch,)
        self._sum: torch.Tensor | float = 0.0

    def take(self, step: int, output: torch.Tensor) -> torch.Tensor | None:
        """Takes the output of a full step, and overwrites the rows that skip it."""
        real = output.clone()
        drift = super().take(step, output)
        if self._before is None:
            return drift
        now, ran = (self._before, real), self._ran(step, output)
        if self._last is None:
            self._last = now
            return drift
        (x, psi), flat = self._last, ran.flatten()
        rate = _average((real - psi).abs()) / _average((now[0] - x).abs())
        self._rate = rate if self._rate is None else torch.where(flat, rate, self._rate)
        self._last = torch.where(ran, now[0], x), torch.where(ran, real, psi)
        self._sum = torch.where(flat, torch.zeros_like(rate), self._sum)
        return drift

    def _forget(self) -> None:
        self._before, self._last, self._rate, self._sum = None, None, None, 0.0

    def _allow(self, step: int, latents: torch.Tensor) -> list[bool] | None:
        before, self._before = self._before, latents.clone()
        if self._rate is None or self._last is None or before is None or step < self._begin:
            return None
        self._sum = self._sum + self._rate * _average((latents - before).abs()) / _average(self._last[1].abs())
        return (self._sum < self._threshold).tolist()


def _average(tensor: torch.Tensor) -> torch.Tensor:
    """(batch,): the mean of every row."""
    return tensor.reshape(len(tensor), -1).mean(dim=1)
