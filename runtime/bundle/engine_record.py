"""What an engine was made of: engine.json beside the engine file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.runtime.bundle.engine_profile import Profile, ShapeRange
from zeus_trt.runtime.bundle.precision import Precision

FORMAT = 2
FILE_NAME = "engine.json"

_ADVICE = "Build the engine again."


@dataclass(frozen=True)
class Target:
    """What an engine runs on.

    Args:
        sms: Compute capabilities such as ``sm_89``, or ``cpu-avx2``.
        gpu: Name of the GPU that it was tuned on; None if it was built without one.
    """

    sms: tuple[str, ...]
    gpu: str | None = None

    def __post_init__(self) -> None:
        if not self.sms:
            raise ValueError("a target names nothing that it is for")

    def __str__(self) -> str:
        return ", ".join(self.sms) + (f" ({self.gpu})" if self.gpu else "")


@dataclass(frozen=True)
class EngineSpec:
    """Everything that changes an engine: two engines of one spec are interchangeable.

    A question leaves ``exporter_version`` and ``options`` empty, and ``profile`` where any serves.

    Args:
        backend: ``tensorrt``, ``tensorrt-rtx`` or ``aot-inductor``.
        backend_version: Version of the library that builds it.
        precision: That of its graph.
        profile: Shapes it takes, per input.
        target: What it runs on.
        graph_sha256: Digest of the bundle's ONNX graph.
        weights_sha256: Digest of the graph's weights file; for AOTInductor, of the model's weights.
        options: How it was built: JSON scalars by name.
        exporter_version: Version of zeus-trt.
    """

    backend: str
    backend_version: str
    precision: Precision
    profile: Profile
    target: Target
    graph_sha256: str
    weights_sha256: str
    options: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    exporter_version: str = ""

    @property
    def key(self) -> str:
        """The folder's name: a digest of every field."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class EngineRecord:
    """An engine that was built.

    Args:
        spec: What it was made of.
        file: Name of the engine file, beside the record.
        size: Its bytes.
        sha256: Its digest.
        build_seconds: How long the build took.
        signature: What ``engine_trust.sign`` made of all else on the machine that built it; empty without one.
    """

    spec: EngineSpec
    file: str
    size: int
    sha256: str
    build_seconds: float = 0.0
    signature: str = ""

    def __post_init__(self) -> None:
        if not self.spec.exporter_version:
            raise ValueError("its spec does not say what made it")
        if self.size < 0:
            raise ValueError("an engine has less than no bytes")
        if self.file in ("", "..") or Path(self.file).name != self.file or "\\" in self.file or "\0" in self.file:
            raise ValueError(f"the engine file {self.file!r} is not beside its record")

    @property
    def key(self) -> str:
        """Name of the engine's folder."""
        return self.spec.key

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "EngineRecord":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No record, or one of a format this version does not know.
        """
        data = strict_json.decode(text.encode() if isinstance(text, str) else text, FILE_NAME, advice=_ADVICE)
        strict_json.check_format(data, FORMAT, FILE_NAME, advice=_ADVICE)
        del data["format"]
        return strict_json.build(data, cls, FILE_NAME, advice=_ADVICE)


def explain(found: EngineSpec, asked: EngineSpec) -> tuple[str, ...]:
    """Why an engine cannot serve, a field at a time; nothing if it can.

    Args:
        found: What the engine was made of.
        asked: What it must be made of. As a question, engines that were built to run on later libraries or other GPUs,
            or for wider shapes, serve as well.
    """
    reasons, is_question = [], not asked.exporter_version
    for name in (one.name for one in fields(EngineSpec)):
        old, new = getattr(found, name), getattr(asked, name)
        if old == new or (is_question and (not new or _serves(name, found, asked))):
            continue
        if name in ("profile", "options"):
            parts = sorted(new if is_question else {*old, *new})
            parts = [part for part in parts if not _agree(old.get(part), new.get(part), is_question)]
            reasons += [_PHRASES[name].format(part=part, old=_say(old, part), new=_say(new, part)) for part in parts]
        elif name == "target" and is_question:
            this = "CPU" if new.sms[0].startswith("cpu") else "GPU"
            reasons.append(f"built for {old}, this {this} is {new}")
        else:
            reasons.append(_PHRASES[name].format(old=str(old)[:_LONGEST], new=str(new)[:_LONGEST]))
    return tuple(reasons)


_AMPERE = 80  # TensorRT's AMPERE_PLUS runs from here on
_LONGEST = 60
_PHRASES = {
    "backend": "built by {old}, asked for {new}",
    "backend_version": "built by version {old} of its library, this one is {new}",
    "precision": "built in {old}, asked for {new}",
    "profile": "built for {part} {old}, asked for {new}",
    "target": "built for {old}, asked for {new}",
    "graph_sha256": "built from another graph than the bundle's ({old:.12}, now {new:.12})",
    "weights_sha256": "built from other weights than the bundle's ({old:.12}, now {new:.12})",
    "options": "built with {part} {old}, asked for {new}",
    "exporter_version": "built by zeus-trt {old}, this one is {new}",
}


def _serves(name: str, found: EngineSpec, asked: EngineSpec) -> bool:
    """Whether an engine serves although this field differs."""
    if name == "backend_version":
        built, here = _split(found.backend_version), _split(asked.backend_version)
        return bool(found.options.get("version_compatible")) and built[:1] == here[:1] and built <= here
    if name == "target":
        others = [sm for sm in asked.target.sms if sm not in found.target.sms]
        runs = all(sm.startswith("sm_") and int(sm.removeprefix("sm_")) >= _AMPERE for sm in others)
        return not others or (bool(found.options.get("hardware_compatible")) and runs)
    return False


def _agree(old: Any, new: Any, is_question: bool) -> bool:
    takes = is_question and isinstance(old, ShapeRange) and old.takes(new.min)
    return takes or old == new


def _split(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def _say(values: Mapping[str, Any], part: str) -> str:
    value = values.get(part, "absent")
    is_range = isinstance(value, ShapeRange) and value.min != value.max
    return f"{value} (best at {'x'.join(map(str, value.opt))})" if is_range else str(value)
