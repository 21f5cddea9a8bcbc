"""What a client asks for, over HTTP or in a line of a file."""

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.adapter import list_names
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.mixture import read_choice
from zeus_trt.runtime.request import Request
from zeus_trt.runtime.solver import MODES
from zeus_trt.serving.limits import Limits
from zeus_trt.zeus_graph import PRESETS
from zeus_trt.zeus_graph.counts import check_count, is_finite, show

DEFAULT_STEPS = 50
ADVICE = "Change the request."

_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
_PLAN = re.compile(r"[FQXRfqxr]+")
_FIELD = re.compile(r"\((?:unknown field |.* at )([a-z_]+)")
_OURS = {
    "num_steps": "steps",
    "class_labels": "label",
    "labels": "label",
    "prompts": "prompt",
    "deadline": "deadline_ms",
}


@dataclass(frozen=True)
class ImageRequest:
    """A request for pictures: the fields of OpenAI's images API, and ours. Plain data; no field names a file.

    Args:
        prompt, negative_prompt: Of pipelines of prompts.
        label: Class of every picture; all classes in turn by default.
        inputs: Conditioning of other bundles: nested lists by the name of the input, without the axis of the batch.
        n: Pictures.
        size: ``WIDTHxHEIGHT`` in pixels, or ``auto``.
        seed: Picture k has the noise of seed + k; a random one by default.
        steps: Solver steps; by default as many as ``plan`` has, else 50 or the limit.
        ratio: Skipped steps after each full one; 3 by default.
        plan: Letters such as ``FFFXRF``, or ``medium``, ``fast`` or ``turbo``, instead of ``ratio``.
        window, predictor: As in ``choose_plan``.
        min_psnr: Floor of quality in dB, instead of a plan: a calibrated plan with at least that is chosen.
        deadline_ms: The aim for the time until the result, in ms: requests that are due earlier go first.
        guidance_scale: 1 turns guidance off; by default 2 of class labels, else the pipeline's own.
        adapter: Of the bundle's: a name, or names with scales, as ``Bundle.with_adapter`` takes them as text.
        mode: As in ``Session.generate``, for bundles.
        stream: Send progress as server-sent events.
        partial_images: Pictures on the way, in a stream, at as many steps. By default at every step, but at none where
            each takes a run of a decoder.
        response_format: ``b64_json``: PNGs in base64.
        model, user: Taken for clients that send them, and not used.
    """

    prompt: str = ""
    negative_prompt: str | None = None
    label: int | None = None
    inputs: dict[str, Any] | None = None
    n: int = 1
    size: str = "auto"
    seed: int | None = None
    steps: int | None = None
    ratio: int | None = None
    plan: str | None = None
    window: str | None = None
    predictor: str | None = None
    min_psnr: float | None = None
    deadline_ms: float | None = None
    guidance_scale: float | None = None
    adapter: str | None = None
    mode: str = "auto"
    stream: bool = False
    partial_images: int | None = None
    response_format: str = "b64_json"
    model: str = ""
    user: str = ""

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width in pixels; None for the model's own."""
        found = _SIZE.fullmatch(self.size)
        return (int(found[2]), int(found[1])) if found else None

    @property
    def seeds(self) -> list[int]:
        """One per picture."""
        return [(self.seed or 0) + k for k in range(self.n)]

    @property
    def settings(self) -> dict[str, Any]:
        """Steps and plan in the words of ``Session.generate``."""
        asked = {name: getattr(self, name) for name in ("plan", "ratio", "window", "predictor", "min_psnr")}
        return {"num_steps": self.steps, **asked}

    def check(self, limits: Limits) -> "ImageRequest":
        """The request with its seed and steps chosen.

        Raises:
            ZeusError: A value that no model takes, fields that exclude each other, or more than a limit.
        """
        check_count("n", self.n, 1, limits.images)
        if self.plan is not None and self.plan not in PRESETS and not _PLAN.fullmatch(self.plan):
            known = f"letters such as FFXRF, or one of {', '.join(PRESETS)}"
            raise ZeusError(f"plan: got {show(self.plan)}; expected {known}. Change it.")
        steps = self.steps
        if steps is None:
            steps = len(self.plan) if self.plan and self.plan not in PRESETS else min(DEFAULT_STEPS, limits.steps)
        check_count("steps", steps, 1, limits.steps)
        seed = secrets.randbelow(1 << 31) if self.seed is None else self.seed
        check_count("seed", seed, 0, 2**63 - 1 - limits.images)
        if self.partial_images is not None:
            check_count("partial_images", self.partial_images, 0, limits.steps)
        self._check_content(limits)
        self._check_size(limits)
        if self.adapter is not None:
            read_choice(self.adapter)
        scale = self.guidance_scale
        if scale is not None and scale < 0:
            raise ZeusError(f"guidance_scale: got {show(scale)}; expected 0 or more. Change it.")
        if (aim := self.deadline_ms) is not None and not (is_finite(aim) and aim > 0):
            raise ZeusError(f"deadline_ms: got {show(aim)}; expected a number above 0. Change it.")
        for name, words in (("mode", MODES), ("response_format", ("b64_json",))):
            if getattr(self, name) not in words:
                raise ZeusError(f"{name}: got {show(getattr(self, name))}; expected {', '.join(words)}. Change it.")
        checked = replace(self, seed=seed, steps=steps)
        Request(**checked.settings, seed=seed, guidance_scale=1.0 if scale is None else scale)
        return checked

    def check_for(self, manifest: Manifest, is_pipeline: bool) -> None:
        """Refuses what a model does not take, as far as that is known before it is opened.

        Args:
            manifest: That of its bundle.
            is_pipeline: Whether the bundle is the engine of a pipeline.

        Raises:
            ZeusError: A field that has no effect on this model, or a label or a size that it does not know.
        """
        others = ("inputs", "mode") if is_pipeline else ("prompt", "negative_prompt")
        if name := next((name for name in others if getattr(self, name) not in (None, "", "auto")), None):
            kind, other = ("pipeline", "bundle") if is_pipeline else ("model without prompts", "pipeline")
            raise ZeusError(f"{name}: got it for a {kind}; expected a {other}. Leave it out.")
        self._check_adapter(manifest)
        if (label := self.label) is not None and manifest.labels is None:
            raise ZeusError("label: got one for a model without class labels; expected none. Leave it out.")
        if label is not None and manifest.labels and not 0 <= label < manifest.labels.count:
            raise ZeusError(f"label: got {label}; expected 0..{manifest.labels.count - 1}. Choose one of these.")
        sides = () if is_pipeline else manifest.latents.axes[2:]
        for side, axis in zip(self.shape or (), sides, strict=False):
            if isinstance(axis, int) and side != axis:
                own = "x".join(str(axis) for axis in reversed(sides))
                raise ZeusError(f"size: got {self.size}; expected {own}, that of this model. Leave it out.")

    def digest(self) -> str:
        """SHA-256 of all fields, in hex: equal requests have equal ones."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def _check_content(self, limits: Limits) -> None:
        for name in ("prompt", "negative_prompt"):
            if (length := len(getattr(self, name) or "")) > limits.prompt:
                raise ZeusError(f"{name}: got {length} characters; expected {limits.prompt} at most. Make it shorter.")
        given = [name for name in ("prompt", "label", "inputs") if getattr(self, name) not in (None, "")]
        if len(given) > 1:
            raise ZeusError(f"{given[1]}: got it beside {given[0]}; expected one of the two. Leave one out.")

    def _check_adapter(self, manifest: Manifest) -> None:
        known = list_names(manifest.files)
        for name in () if self.adapter is None else read_choice(self.adapter):
            if name not in known:
                raise ZeusError(
                    f"adapter: got {show(name)} for a model with {', '.join(known) or 'none'}; expected one that it "
                    "has. Change it, or leave it out."
                )

    def _check_size(self, limits: Limits) -> None:
        if self.size == "auto":
            return
        if (shape := self.shape) is None:
            raise ZeusError(f"size: got {show(self.size)}; expected WIDTHxHEIGHT such as 512x448, or auto. Change it.")
        if shape[0] * shape[1] > limits.pixels:
            raise ZeusError(
                f"size: got {shape[0] * shape[1]} pixels; expected {limits.pixels} at most. Ask for a smaller picture."
            )


def read_request(data: Any, limits: Limits) -> ImageRequest:
    """Reads a request.

    Args:
        data: JSON text as bytes, or what it says; null is as good as no field.
        limits: The most of everything.

    Raises:
        ZeusError: No strict JSON, an unknown field, a value of another type, or as ``ImageRequest.check``.
    """
    if isinstance(data, bytes):
        data = strict_json.decode(data, "request", advice=ADVICE)
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if value is not None}
    return strict_json.build(data, ImageRequest, "request", advice=ADVICE).check(limits)


def find_field(error: ZeusError) -> str | None:
    """The field of the request that an error is about, if it names one."""
    text = str(error)
    name = text.partition(":")[0]
    if name == "request":
        found = _FIELD.search(text)
        return found[1] if found else None
    name = _OURS.get(name, name)
    return name if name in ImageRequest.__dataclass_fields__ else None


def make_schema() -> dict[str, Any]:
    """The JSON schema of a request."""
    import msgspec

    _, found = msgspec.json.schema_components([ImageRequest], ref_template="#/{name}")
    return found["ImageRequest"]
