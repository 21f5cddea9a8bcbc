"""What an engine was made of: engine.json beside the engine file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.engine_profile import ShapeRange

FORMAT = 1
FILE_NAME = "engine.json"


@dataclass(frozen=True)
class Target:
    """What an engine runs on.

    Args:
        sms: Compute capabilities such as ``sm_89``, or ``cpu-avx2``.
        gpu: Name of the GPU that it was tuned on; None if it was built without one.
    """

    sms: tuple[str, ...]
    gpu: str | None = None

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
    options: Mapping[str, Any]
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

    @property
    def key(self) -> str:
        """Name of the engine's folder."""
        return self.spec.key

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "EngineRecord":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No record, or one of a format this version does not know.
        """
        try:
            data = json.loads(text)
            version = data.pop("format")
            if version != FORMAT:
                raise ZeusError(
                    f"{FILE_NAME}: got format {version}; expected {FORMAT}. Update zeus-trt, or build the engine again."
                )
            spec = data.pop("spec")
            spec["profile"] = {name: _read_range(entry) for name, entry in spec["profile"].items()}
            spec["target"] = Target(tuple(spec["target"]["sms"]), spec["target"]["gpu"])
            return cls(EngineSpec(**spec), **data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ZeusError(
                f"{FILE_NAME}: got JSON that does not fit ({error}); expected the record of an engine. "
                "Build the engine again."
            ) from error


def explain(found: EngineSpec, wanted: EngineSpec) -> tuple[str, ...]:
    """Why ``found`` cannot stand for ``wanted``, a field at a time; nothing if their keys are equal."""
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


def _read_range(data: dict[str, Any]) -> ShapeRange:
    return ShapeRange(tuple(data["min"]), tuple(data["opt"]), tuple(data["max"]))
