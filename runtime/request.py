"""What a trajectory is asked for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.guidance import Guidance
from zeus_trt.runtime.noise import read_seed
from zeus_trt.runtime.start import Start
from zeus_trt.zeus_graph import Predictor, StepPlan, choose_predictor, counts

_IMAGES = ("batch", "num_images")
_OURS = {"scheduler", "num_steps", "num_inference_steps", "begin", "device"}  # not to be said twice


@dataclass(frozen=True)
class Request:
    """All that determines a trajectory, but engine and solver; the arguments of ``Session.sample``.

    Raises:
        ZeusError: A setting that is none. Tensors are checked later, against the manifest.
    """

    conditioning: Mapping[str, torch.Tensor]
    plan: StepPlan
    num_steps: int
    batch: int
    guidance: Guidance
    seed: int | Sequence[int]
    noise: torch.Tensor | None
    start: Start | None
    schedule: Mapping[str, Any]
    predictor: str | Predictor | None
    drift_threshold: float | None

    def __post_init__(self) -> None:
        expect("conditioning", self.conditioning, Mapping, "tensors by name")
        expect("plan", self.plan, StepPlan, "a StepPlan")
        expect("start", self.start, (Start, type(None)), "a Start")
        expect("schedule", self.schedule, Mapping, "arguments of set_timesteps by name")
        expect("predictor", self.predictor, (str, Predictor, type(None)), "a name or a Predictor")
        if isinstance(self.predictor, Predictor) and self.predictor.table is None:
            Predictor.parse(str(self.predictor))
        object.__setattr__(self, "predictor", choose_predictor(self.plan, self.predictor))
        check_count("num_steps", self.num_steps, 1)
        check_count("batch", self.batch, 1)
        if self.start:
            check_count("begin", self.start.begin, 0)
        if wrong := [name for name in self.schedule if not isinstance(name, str) or name in _OURS]:
            raise ZeusError(f"schedule: got {wrong[0]!r}; expected other arguments of set_timesteps. Leave it out.")
        object.__setattr__(self, "seed", read_seed(self.seed))
        check_threshold(self.drift_threshold)


def check_count(name: str, value: Any, least: int) -> None:
    """Refuses what is no whole number of at least ``least``, or more than anything is run with.

    Raises:
        ZeusError: Such a value.
    """
    counts.check_count(name, value, least, counts.MAX_IMAGES if name in _IMAGES else counts.MAX_STEPS)


def check_run(num_steps: Any, num_images: Any, seed: Any) -> None:
    """Refuses numbers that no run takes, before anything is loaded for it.

    Args:
        num_steps: Solver steps.
        num_images: Image k is to draw from ``seed`` + k.
        seed: A whole number of 64 bits.

    Raises:
        ZeusError: One of them is none, or out of range.
    """
    check_count("num_steps", num_steps, 1)
    check_count("num_images", num_images, 1)
    read_seed(seed, num_images)


def check_threshold(threshold: Any) -> None:
    """Refuses what is no threshold of drift."""
    is_infinite = isinstance(threshold, float) and threshold == math.inf
    if threshold is not None and not is_infinite and not (counts.is_finite(threshold) and threshold > 0):
        got = counts.show(threshold)
        raise ZeusError(f"drift_threshold: got {got}; expected a number above 0, or infinity. Change it.")


def expect(name: str, value: Any, kinds: Any, words: str) -> None:
    """Refuses a value of other kinds."""
    if not isinstance(value, kinds):
        raise ZeusError(f"{name}: got {type(value).__name__}; expected {words}. Change it.")
