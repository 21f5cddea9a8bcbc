"""Guidance: which calls a step makes, and how their outputs become one."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.zeus_graph.counts import is_finite, show

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Guidance:
    """How a trajectory is guided.

    Args:
        scale: 1 turns classifier-free guidance off. A denoiser with an input ``guidance`` reads the scale there, and
            is not guided otherwise, unless that input is given as conditioning.
        negative: Conditioning of the unconditional rows, by input name; for models with class labels the null class
            by default.
        sequential: One call per branch instead of one of twice the batch: less memory, and texts of different
            lengths. By default what the exported pipeline does.
        interval: Fractions of the evaluations between which it is on; elsewhere only the conditional branch is called.
        rescale: How much of the conditional output's standard deviation is given back to the guided output, 0..1
            ("Common Diffusion Noise Schedules and Sample Steps are Flawed", section 3.4).
        wrap: Another guidance than classifier-free, such as by a perturbed model: takes the denoiser and returns the
            one that runs in its place, called with the conditional inputs, each (batch, ...), by name.

    Raises:
        ZeusError: A number outside of its range, or ``wrap`` beside what it replaces.
    """

    scale: float = 1.0
    negative: Mapping[str, torch.Tensor] | None = None
    sequential: bool | None = None
    interval: tuple[float, float] = (0.0, 1.0)
    rescale: float = 0.0
    wrap: Callable[[Denoiser], Denoiser] | None = None

    def __post_init__(self) -> None:
        _check_number("guidance_scale", self.scale, -math.inf, math.inf)
        _check_number("guidance rescale", self.rescale, 0.0, 1.0)
        if not isinstance(self.interval, tuple | list) or len(self.interval) != 2:
            raise ZeusError(
                f"guidance interval: got {self.interval!r}; expected two fractions such as (0.1, 0.8). Change it."
            )
        start, end = self.interval
        _check_number("guidance interval", start, 0.0, 1.0)
        _check_number("guidance interval", end, start, 1.0)
        if self.negative is not None and not isinstance(self.negative, Mapping):
            raise ZeusError(f"negative: got {type(self.negative).__name__}; expected tensors by name. Pass a dict.")
        replaced = (self.scale, self.negative, self.sequential, self.rescale) != (1.0, None, None, 0.0)
        if self.wrap is not None and (replaced or not callable(self.wrap)):
            raise ZeusError(
                f"guidance wrap: got {type(self.wrap).__name__}{' beside other guidance' * replaced}; expected a "
                "function of the denoiser, with nothing but an interval beside it. Leave the rest to it."
            )

    def steps(self, num_evaluations: int) -> range:
        """The evaluations at which it is on."""
        start, end = (math.ceil(fraction * num_evaluations - 1e-9) for fraction in self.interval)
        return range(start, end)


class ClassifierFreeGuidance:
    """Classifier-free guidance: uncond + scale * (cond - uncond).

    ``expand`` makes the engine's calls of one step, ``combine`` makes one output of theirs, so that the rows of many
    requests can share a call.

    Args:
        scale: Guidance scale; 1 gives the conditional output.
        negative: The conditioning of the unconditional rows, by input name. Other inputs are the same in both branches.
        shared: Inputs without rows, such as the positions of tokens, which both branches read.
        sequential: Two calls of the batch, the conditional one first, instead of one call of twice the batch with the
            unconditional rows first.
        rescale: As in ``Guidance``.
    """

    def __init__(
        self,
        scale: float,
        negative: Mapping[str, torch.Tensor],
        shared: Collection[str] = (),
        *,
        sequential: bool = False,
        rescale: float = 0.0,
    ):
        self.scale, self.negative, self.shared = scale, dict(negative), frozenset(shared)
        self.sequential, self.rescale = sequential, rescale

    def __call__(self, denoiser: Denoiser) -> Denoiser:
        """The denoiser under this guidance: maps conditional inputs, each (batch, ...), to the guided output."""

        def guided(**inputs: torch.Tensor) -> torch.Tensor:
            *first, last = self.expand(inputs)
            outputs = [denoiser(**branch).clone() for branch in first]  # the next call may reuse the buffer
            return self.combine([*outputs, denoiser(**last)])

        return guided

    def select(self, rows: Sequence[int], by_row: Collection[str]) -> "ClassifierFreeGuidance":
        """The guidance of some rows of a batch, ``by_row`` the inputs that have a row of each."""
        negative = {name: value[rows] if name in by_row else value for name, value in self.negative.items()}
        return ClassifierFreeGuidance(
            self.scale, negative, self.shared, sequential=self.sequential, rescale=self.rescale
        )

    def expand(self, inputs: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], ...]:
        """The inputs of each call of the engine, for conditional inputs (batch, ...) by name."""
        if self.sequential:
            return dict(inputs), {**inputs, **self.negative}
        return (
            {
                name: value if name in self.shared else torch.cat([self.negative.get(name, value), value])
                for name, value in inputs.items()
            },
        )

    def combine(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The guided output (batch, ...), a new tensor, for one output of each call that ``expand`` made."""
        if self.sequential:
            cond, uncond = (_widen(output) for output in outputs)
        else:
            uncond, cond = _widen(outputs[0]).chunk(2)
        guided = uncond + self.scale * (cond - uncond)
        if not self.rescale:
            return guided
        axes = tuple(range(1, guided.ndim))
        rescaled = guided * (cond.std(axes, keepdim=True) / guided.std(axes, keepdim=True))
        return self.rescale * rescaled + (1 - self.rescale) * guided


def _widen(output: torch.Tensor) -> torch.Tensor:
    """A difference of halves, times a scale, would lose half of the digits."""
    return output.float() if output.dtype in _HALVES else output


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not is_finite(value) or not low <= value <= high:
        takes = "a number" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise ZeusError(f"{name}: got {show(value)}; expected {takes}. Change it.")
