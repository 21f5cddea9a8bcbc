"""What an engine was made of: engine.json beside the engine file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.runtime.bundle.engine_profile import ShapeRange

FORMAT = 1
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

    Args:
        backend: ``tensorrt``, ``tensorrt-rtx`` or ``aot-inductor``.
        backend_version: Version of the library that builds it.
        precision: ``fp32``, ``fp16`` or ``bf16``; that of the graph.
        profile: Shapes it takes, per input.
        target: What it runs on.
        graph_sha256: Digest of the bundle's ONNX graph.
        weights_sha256: Digest of the graph's weights file; for AOTInductor, of the model's weights.
        options: How it was built: JSON scalars by name.
        exporter_version: Version of zeus-trt.
    """

    backend: str
    backend_version: str
    precision: str
    profile: Mapping[str, ShapeRange]
    target: Target
    graph_sha256: str
    weights_sha256: str
    options: Mapping[str, bool | int | float | str | None]
    exporter_version: str

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


def explain(found: EngineSpec, wanted: EngineSpec) -> tuple[str, ...]:
    """Why ``found`` cannot replace ``wanted``, a field at a time; nothing if their keys are equal."""
    reasons = []
    for name in (spec.name for spec in fields(EngineSpec)):
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new:
            reasons += _explain_field(name, old, new)
    return tuple(reasons)


_PHRASES = {
    "backend": "built by {old}, now {new}",
    "backend_version": "built by version {old} of its library, now {new}",
    "precision": "built in {old}, now {new}",
    "target": "built for {old}, now {new}",
    "graph_sha256": "built from another graph ({old}, now {new})",
    "weights_sha256": "built from other weights ({old}, now {new})",
    "exporter_version": "built by zeus-trt {old}, now {new}",
}


def _explain_field(name: str, old: Any, new: Any) -> list[str]:
    if name == "profile":
        return [f"{input} was {_say(old, input)}, now {_say(new, input)}" for input in _differing(old, new)]
    if name == "options":
        return [f"option {option} was {_say(old, option)}, now {_say(new, option)}" for option in _differing(old, new)]
    if name.endswith("_sha256"):
        old, new = old[:12], new[:12]
    return [_PHRASES[name].format(old=old, new=new)]


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _say(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "absent")
    return f"{value} (best at {'x'.join(map(str, value.opt))})" if isinstance(value, ShapeRange) else str(value)
