"""The body of a request for pictures, and the most that may be asked for."""

import re
import secrets
from dataclasses import dataclass, replace
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import PRESETS
from zeus_trt.zeus_graph.counts import check_count, show

DEFAULT_STEPS = 50

_ADVICE = "Change the request."
_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
_FIELD = re.compile(r"\((?:unknown field |.* at )([a-z_]+)")
_OURS = {
    "num_steps": "steps",
    "class_labels": "label",
    "labels": "label",
    "prompts": "prompt",
    "deadline": "deadline_ms",
}
_PLAN = re.compile(r"[FQXRfqxr]+")


@dataclass(frozen=True)
class Limits:
    """The most that a client may ask for.

    Args:
        images: Pictures of a request.
        steps: Solver steps.
        pixels: Width times height of a picture.
        prompt: Characters of a prompt.
        body: Bytes of a request.
        body_seconds: Time until a request's body is there.
        streams: Requests with ``stream`` that run at a time.
        seconds: Time until a request's result is there.
        connections: Open connections.
    """

    images: int = 8
    steps: int = 200
    pixels: int = 2048 * 2048
    prompt: int = 4000
    body: int = 1 << 16
    body_seconds: float = 10.0
    streams: int = 64
    seconds: float = 300.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("images", "steps", "pixels", "prompt", "body", "streams", "connections"):
            check_count(name, getattr(self, name), 1)


@dataclass(frozen=True)
class GenerationRequest:
    """A request for pictures: the fields of OpenAI's images API, and ours.

    Args:
        prompt: Text, of a pipeline of prompts.
        label: Class of every picture; all classes in turn by default.
        n: Pictures.
        size: ``WIDTHxHEIGHT`` in pixels, or ``auto``.
        response_format: ``b64_json``: PNGs in base64.
        seed: Picture k has the noise of seed + k; a random one by default.
        steps: Solver steps; by default as many as ``plan`` has, else 50 or the limit.
        ratio: Skipped steps after each full one; 3 by default.
        plan: Letters such as ``FFFXRF``, or ``medium``, ``fast`` or ``turbo``, instead of ``ratio``.
        min_psnr: Floor of quality in dB: a calibrated plan with at least that is chosen.
        deadline_ms: The aim for the time until the result, in ms: requests that are due earlier go first.
        guidance_scale: 1 turns guidance off; by default 2 of class labels, else the pipeline's own.
        negative_prompt: Of a pipeline of prompts.
        stream: Send progress, with a picture of every step, as server-sent events.
        model, user: Taken for clients that send them, and not used.
    """

    prompt: str = ""
    label: int | None = None
    n: int = 1
    size: str = "auto"
    response_format: str = "b64_json"
    seed: int | None = None
    steps: int | None = None
    ratio: int | None = None
    plan: str | None = None
    min_psnr: float | None = None
    deadline_ms: float | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    stream: bool = False
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

    def check(self, limits: Limits) -> "GenerationRequest":
        """The request with its seed and steps chosen.

        Raises:
            ZeusError: A value that no model takes, or more than a limit.
        """
        check_count("n", self.n, 1, limits.images)
        self._check_plan()
        steps = self.steps
        if steps is None:
            steps = len(self.plan) if self.plan and self.plan not in PRESETS else min(DEFAULT_STEPS, limits.steps)
        check_count("steps", steps, 1, limits.steps)
        if self.ratio is not None:
            check_count("ratio", self.ratio, 0, limits.steps)
        seed = secrets.randbelow(1 << 31) if self.seed is None else self.seed
        check_count("seed", seed, 0, 2**63 - 1 - limits.images)
        for name in ("prompt", "negative_prompt"):
            if len(text := getattr(self, name) or "") > limits.prompt:
                raise ZeusError(
                    f"{name}: got {len(text)} characters; expected {limits.prompt} at most. Make it shorter."
                )
        if self.response_format != "b64_json":
            raise ZeusError(
                f"response_format: got {show(self.response_format)}; expected b64_json, since no picture is kept. "
                "Change it."
            )
        self._check_size(limits)
        for name in ("deadline_ms", "min_psnr", "guidance_scale"):
            value = getattr(self, name)
            if value is not None and not (0 if name == "guidance_scale" else 1e-3) <= value <= 1e6:
                raise ZeusError(f"{name}: got {show(value)}; expected a number above 0, up to 1e6. Change it.")
        return replace(self, seed=seed, steps=steps)

    def _check_plan(self) -> None:
        """A plan is letters or a preset: a client names no file."""
        if self.plan is None:
            return
        for name in ("ratio", "min_psnr"):
            if getattr(self, name) is not None:
                raise ZeusError(f"plan: got one beside {name}; expected one of the two. Leave the other out.")
        if self.plan not in PRESETS and not _PLAN.fullmatch(self.plan):
            raise ZeusError(
                f"plan: got {show(self.plan)}; expected letters such as FFXRF, or one of {', '.join(PRESETS)}. "
                "Change it."
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


def read_request(body: bytes, limits: Limits) -> GenerationRequest:
    """Reads a request.

    Args:
        body: JSON text.
        limits: The most of everything.

    Raises:
        ZeusError: No strict JSON, an unknown field, a value of another type, or as ``GenerationRequest.check``.
    """
    return strict_json.parse(body, GenerationRequest, "request", advice=_ADVICE).check(limits)


def find_field(error: ZeusError) -> str | None:
    """The field of the request that an error is about, if it names one."""
    text = str(error)
    name = text.partition(":")[0]
    if name == "request":
        found = _FIELD.search(text)
        return found[1] if found else None
    name = _OURS.get(name, name)
    return name if name in GenerationRequest.__dataclass_fields__ else None


def make_schema() -> dict[str, Any]:
    """The JSON schema of a request."""
    import msgspec

    _, found = msgspec.json.schema_components([GenerationRequest], ref_template="#/{name}")
    return found["GenerationRequest"]
