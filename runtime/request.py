"""What a trajectory is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.guidance import Guidance
from zeus_trt.runtime.start import Start
from zeus_trt.zeus_graph import Predictor, StepPlan, choose_predictor

_OURS = {"scheduler", "num_steps", "num_inference_steps", "begin", "device"}  # not to be said twice
_SEEDS = range(-(2**63), 2**64)  # what torch takes


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
    """Refuses what is no whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ZeusError(f"{name}: got {value!r}; expected a whole number of at least {least}. Change it.")


def read_seed(seed: Any) -> int | list[int]:
    """Plain integers of whatever kind of integer, or of a sequence of such."""
    seed = seed.tolist() if isinstance(seed, np.ndarray) else seed
    rows = list(seed) if isinstance(seed, list | tuple | range) else None
    for one in [seed] if rows is None else rows:
        if isinstance(one, bool) or not isinstance(one, Integral) or int(one) not in _SEEDS:
            raise ZeusError(f"seed: got {one!r}; expected a whole number of 64 bits, or one per row. Change it.")
    return int(seed) if rows is None else [int(one) for one in rows]


def check_threshold(threshold: Any) -> None:
    """Refuses what is no threshold of drift."""
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if threshold is not None and not (is_number and threshold > 0):
        raise ZeusError(f"drift_threshold: got {threshold!r}; expected a number above 0, or infinity. Change it.")


def expect(name: str, value: Any, kinds: Any, words: str) -> None:
    """Refuses a value of other kinds."""
    if not isinstance(value, kinds):
        raise ZeusError(f"{name}: got {type(value).__name__}; expected {words}. Change it.")
