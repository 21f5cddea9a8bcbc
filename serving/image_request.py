"""What a client asks for: the fields of a line of a batch, named as the options of ``zeus-trt run``."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.request import Request, check_count
from zeus_trt.zeus_graph import PRESETS, Plan, choose_plan
from zeus_trt.zeus_graph.plan_choice import Planner

LONGEST_PROMPT = 10_000
"""Characters of a prompt."""

_MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class ImageRequest:
    """One picture; plain data, from anywhere. No field names a file.

    Args:
        prompt, negative_prompt: For pipelines.
        label: For models of class labels.
        inputs: Conditioning of other bundles: nested lists by the name of the input, without the axis of the batch.
        steps: Solver steps.
        ratio, window, preset, predictor: As in ``choose_plan``.
        plan: Letters such as ``FFFXRF``, or a preset, instead of ``ratio``.
        guidance_scale: As in ``zeus-trt run``: the pipeline's own by default, 2 of class labels, else 1.
        seed: Of the noise.
        height, width: In pixels, for pipelines.
        mode: As in ``Session.generate``, for bundles.

    Raises:
        ZeusError: A value out of its range, or fields that exclude each other.
    """

    prompt: str | None = None
    negative_prompt: str | None = None
    label: int | None = None
    inputs: dict[str, Any] | None = None
    steps: int = 50
    ratio: int | None = None
    plan: str | None = None
    window: str | None = None
    preset: str | None = None
    predictor: str | None = None
    guidance_scale: float | None = None
    seed: int = 0
    height: int | None = None
    width: int | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        for name in ("prompt", "negative_prompt"):
            if len(getattr(self, name) or "") > LONGEST_PROMPT:
                raise ZeusError(f"{name}: got more than {LONGEST_PROMPT} characters; expected fewer. Shorten it.")
        check_count("steps", self.steps, 1)
        if len(given := [name for name in ("prompt", "label", "inputs") if getattr(self, name) is not None]) > 1:
            raise ZeusError(f"{given[1]}: got it beside {given[0]}; expected one of the two. Leave one out.")
        if (self.height is None) != (self.width is None):
            raise ZeusError("height: got one of height and width; expected both, or neither. Add the other.")
        for name in ("height", "width"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        if (self.height or 1) * (self.width or 1) > _MOST_PIXELS:
            raise ZeusError(
                f"height: got {self.height}x{self.width}; expected at most {_MOST_PIXELS} pixels. Lower it."
            )
        if self.mode not in ("auto", "program", "step"):
            raise ZeusError(f"mode: got {self.mode!r}; expected auto, program or step. Choose one of these.")
        self.make_planner()
        Request(num_steps=self.steps, seed=self.seed, guidance_scale=self.guidance_scale or 1.0)

    def make_planner(self) -> Planner:
        """The function that makes the plan for a number of evaluations."""
        plan = self.plan if self.plan is None or self.plan in PRESETS else Plan(self.plan)
        return choose_plan(plan, self.ratio, self.window, self.preset, self.predictor)

    def check_for(self, manifest: Manifest | None) -> None:
        """Refuses what a model does not take, as far as that is known before it is opened.

        Args:
            manifest: That of the bundle that runs alone; None for a pipeline.

        Raises:
            ZeusError: A field that has no effect on this model, or a label that it does not know.
        """
        others = ("inputs", "mode") if manifest is None else ("prompt", "negative_prompt", "height", "width")
        if name := next((name for name in others if getattr(self, name) not in (None, "auto")), None):
            kind, other = ("pipeline", "bundle") if manifest is None else ("bundle", "pipeline")
            raise ZeusError(f"{name}: got it for a {kind}; expected a {other}. Leave it out.")
        labels = manifest.labels if manifest else None
        if manifest and self.label is not None and labels is None:
            raise ZeusError("label: got one for a model without class labels; expected none. Leave it out.")
        if labels and self.inputs is None and (self.label is None or not 0 <= self.label < labels.count):
            raise ZeusError(f"label: got {self.label}; expected 0..{labels.count - 1}. Choose one of these.")

    def digest(self) -> str:
        """SHA-256 of all fields, in hex: equal requests have equal ones."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
