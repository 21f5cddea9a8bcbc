"""What a trajectory is asked for."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.guidance import Guidance
from zeus_trt.runtime.menu import check_floor
from zeus_trt.runtime.noise import read_seed
from zeus_trt.runtime.start import Start
from zeus_trt.zeus_graph import Plan, Predictor, SolverProgram, choose_plan, counts
from zeus_trt.zeus_graph.plan_choice import Planner, lay_plan
from zeus_trt.zeus_graph.policy import PolicyMaker
from zeus_trt.zeus_graph.policy_choice import choose_policy, read_policy, settle_plan
from zeus_trt.zeus_graph.window import Window

_IMAGES = ("batch", "num_images")
_OURS = {"scheduler", "num_steps", "num_inference_steps", "begin", "device"}  # not to be said twice


@dataclass(frozen=True)
class Request:
    """All that determines a trajectory, apart from engine and solver: the settings of ``Session.generate``.

    Args:
        conditioning: Constant inputs of the denoiser by name, of the shapes in the manifest, a row per image. Models
            whose latents have constant channels (inpainting) take these as ``<latents>_constant``.
        num_steps: Solver steps of the whole schedule.
        plan: What happens at each evaluation. ``plan``, ``ratio``, ``window`` and ``preset`` are as in ``choose_plan``;
            ratio 3 by default.
        min_psnr: PSNR in dB to the full run, instead of a plan: the cheapest of the bundle's calibrated plans that was
            measured to have so much with this solver, number of steps and guidance; every step is full without one.
        predictor: The rule that fills skipped steps; by default the plan's, else ``zeus``.
        batch: Number of images, where neither conditioning nor noise has it.
        guidance_scale: Short for ``Guidance(scale, negative)``: 1 turns guidance off.
        negative: Conditioning of the unconditional rows of guidance, by name; for models with class labels the null
            class by default.
        guidance: Full guidance settings, instead of these two.
        seed: Of the initial noise, and of a stochastic solver's draws; or one per row, which then has the same noise in
            every batch.
        noise: Standard normal noise (batch, ...) instead of the seed's; needed where the size may vary.
        start: A picture to begin with, for image to image and inpainting.
        schedule: More arguments of the scheduler's ``set_timesteps``: ``sigmas``, ``timesteps``, ``mu`` ...
        drift_threshold: Measure drift; a step after one whose drift is above this is full too. Infinity only measures.
        policy: What decides at run time, for every row, which steps are full: a name as ``read_policy`` takes it, such
            as ``easycache=0.05``, or what makes the policy of a plan. A criterion decides instead of the plan, and
            brings its predictor.

    Raises:
        ZeusError: A setting of another kind, out of range, or beside one that it excludes. Tensors are checked later,
            against the manifest.
    """

    conditioning: Mapping[str, torch.Tensor] = field(default_factory=dict)
    num_steps: int = 50
    plan: Plan | str | os.PathLike | None = None
    ratio: int | None = None
    window: str | Window | None = None
    preset: str | None = None
    min_psnr: float | None = None
    predictor: str | Predictor | None = None
    batch: int = 1
    guidance_scale: float = 1.0
    negative: Mapping[str, torch.Tensor] | None = None
    guidance: Guidance | None = None
    seed: int | Sequence[int] = 0
    noise: torch.Tensor | None = None
    start: Start | None = None
    schedule: Mapping[str, Any] | None = None
    drift_threshold: float | None = None
    policy: str | PolicyMaker | None = None

    def __post_init__(self) -> None:
        expect("conditioning", self.conditioning, Mapping, "tensors by name")
        expect("plan", self.plan, (Plan, str, os.PathLike, type(None)), "a Plan")
        expect("start", self.start, (Start, type(None)), "a Start")
        expect("schedule", self.schedule, (Mapping, type(None)), "arguments of set_timesteps by name")
        expect("predictor", self.predictor, (str, Predictor, Callable, type(None)), "a name or a Predictor")
        if isinstance(self.predictor, Predictor) and self.predictor.table is self.predictor.rule is None:
            Predictor.parse(str(self.predictor))
        self._choose_plan()
        check_floor(self.min_psnr, self.says_plan)
        check_count("num_steps", self.num_steps, 1)
        check_count("batch", self.batch, 1)
        if self.start:
            check_count("begin", self.start.begin, 0)
        if wrong := [name for name in self.schedule or () if not isinstance(name, str) or name in _OURS]:
            raise ZeusError(f"schedule: got {wrong[0]!r}; expected other arguments of set_timesteps. Leave it out.")
        object.__setattr__(self, "seed", read_seed(self.seed))
        check_threshold(self.drift_threshold)
        make_policy = choose_policy(self.drift_threshold, self.policy)
        if self.policy is not None:
            object.__setattr__(self, "policy", make_policy)
        guidance = _choose_guidance(self.guidance, self.guidance_scale, self.negative)
        for name, value in (("guidance", guidance), ("guidance_scale", 1.0), ("negative", None)):
            object.__setattr__(self, name, value)

    def _choose_plan(self) -> Planner:
        return choose_plan(self.plan, self.ratio, self.window, self.preset, self.predictor)

    @property
    def says_plan(self) -> bool:
        """Whether it says which steps are full."""
        given = (self.plan, self.ratio, self.window, self.preset, self.predictor, self.policy, self.drift_threshold)
        return any(value is not None for value in given)

    def settle(
        self, count: Callable[[], int], program: Callable[[], SolverProgram], start: Start | None
    ) -> "SettledRequest":
        """The request with a plan for its schedule.

        Args:
            count: Gives the evaluations of the schedule; only called where the plan depends on it.
            program: Gives the traced solver, likewise.
            start: Where it begins.
        """
        given = self.plan if isinstance(self.plan, Plan) else None
        plan = given.with_predictor(self.predictor) if given else lay_plan(self._choose_plan(), count(), program)
        plan = settle_plan(read_policy(self.policy), plan) if self.policy else plan
        settled = dict.fromkeys(("ratio", "window", "preset", "min_psnr", "predictor")) | {
            "schedule": self.schedule or {}
        }
        return SettledRequest(**{**vars(self), **settled, "plan": plan, "start": start})


class SettledRequest(Request):
    """A request whose plan, guidance and schedule are known: the plan has the predictor."""

    plan: Plan
    guidance: Guidance
    schedule: Mapping[str, Any]
    policy: PolicyMaker | None


def check_count(name: str, value: Any, least: int) -> None:
    """Refuses anything but a whole number from ``least`` to the limit of its kind.

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
        ZeusError: One of them is not a whole number, or out of range.
    """
    check_count("num_steps", num_steps, 1)
    check_count("num_images", num_images, 1)
    read_seed(seed, num_images)


def check_threshold(threshold: Any) -> None:
    """Refuses anything but a threshold of drift."""
    is_infinite = isinstance(threshold, float) and threshold == math.inf
    if threshold is not None and not is_infinite and not (counts.is_finite(threshold) and threshold > 0):
        got = counts.show(threshold)
        raise ZeusError(f"drift_threshold: got {got}; expected a number above 0, or infinity. Change it.")


def expect(name: str, value: Any, kinds: Any, words: str) -> None:
    """Refuses a value of other kinds."""
    if not isinstance(value, kinds):
        raise ZeusError(f"{name}: got {type(value).__name__}; expected {words}. Change it.")


def _choose_guidance(guidance: Guidance | None, scale: float, negative: Mapping[str, torch.Tensor] | None) -> Guidance:
    if guidance is None:
        return Guidance(scale, negative)
    if not isinstance(guidance, Guidance) or scale != 1.0 or negative is not None:
        raise ZeusError(
            f"guidance: got {type(guidance).__name__} beside guidance_scale {scale!r} and "
            f"{'some' if negative is not None else 'no'} negative; expected a Guidance alone, or the other two. "
            "Give one of them."
        )
    return guidance
