"""``config.pbtxt`` of the models of a Triton model repository."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.conditioning import list_conditioning

DENOISER, QUANTIZED, SAMPLER = "denoiser", "quantized", "sampler"
_TYPES = {
    "float32": "FP32", "float16": "FP16", "float64": "FP64", "int64": "INT64", "int32": "INT32", "int16": "INT16",
    "int8": "INT8", "uint8": "UINT8", "bool": "BOOL", "text": "STRING",
}  # fmt: skip
_SETTINGS = {
    "num_steps": "int32", "ratio": "int32", "plan": "text", "predictor": "text", "guidance_scale": "float64",
    "batch": "int32", "every": "int32",
}  # fmt: skip
_EMBEDDED = "guidance"  # the sampler fills it with the scale


@dataclass(frozen=True)
class Served:
    """What Triton runs the denoiser with.

    Args:
        config: ``backend`` or ``platform``, and the name of the model's file where it is not the default one.
        files: What to copy, by its name in the folder of the version.
        module: Module of ``zeus_trt.runtime.triton`` that runs it, in the Python backend.
        parameters: What that module reads.
        max_rows: Most rows that the engine was built for; None takes any.
    """

    config: Mapping[str, str]
    files: Mapping[str, Path]
    module: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    max_rows: int | None = None


def find_max_rows(manifest: Manifest, asked: int) -> int:
    """Most rows of a call that Triton's batcher may make; 0 where it cannot join calls, and must be off.

    It joins along the first axis of all inputs. So all must have the batch there and nowhere else, and no relation of
    sizes may hold for one call and not for two of them together.
    """
    batch = manifest.latents.axes[0]
    symbol = next((symbol for symbol in manifest.symbols if symbol.name == batch and not symbol.factors), None)
    joins = all(spec.axes[:1] == (batch,) and batch not in spec.axes[1:] for spec in manifest.inputs)
    if symbol is None or not joins or any(batch in relation.names for relation in manifest.relations):
        return 0
    if any(batch in other.factors for other in manifest.symbols):
        return 0
    return min(asked, symbol.maximum or asked)


def write_denoiser(manifest: Manifest, served: Served, max_rows: int, delay: int, name: str = DENOISER) -> str:
    """The config of the denoiser, or of the quantized one.

    Args:
        manifest: Its inputs and output.
        served: What runs it.
        max_rows: As ``find_max_rows`` returns it.
        delay: Microseconds that a call waits for others.
        name: That of the model.
    """
    batcher = [f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}"] if max_rows else []
    return _join(
        f"name: {_quote(name)}",
        *(f"{key}: {_quote(value)}" for key, value in served.config.items()),
        f"max_batch_size: {max_rows}",
        *(_write_tensor("input", spec, has_rows=max_rows > 0) for spec in manifest.inputs),
        _write_tensor("output", manifest.output, has_rows=max_rows > 0),
        *batcher,
        "instance_group [ { count: 1 } ]",  # a second one would take calls that could join the first one's
        *_write_parameters(served.parameters),
    )


def write_sampler(manifest: Manifest, max_rows: int, trajectories: int, has_quantized: bool = False) -> str:
    """The sampler's config: conditioning and settings in, latents and progress out.

    Args:
        manifest: Of the bundle.
        max_rows: Of the denoiser.
        trajectories: Requests that run at the same time; others wait.
        has_quantized: Whether the repository has a quantized denoiser, for plans with ``Q``.
    """
    latents = manifest.latents.axes
    specs = list_conditioning(manifest).values()
    by_row = [spec for spec in specs if spec.axes[:1] == latents[:1] and spec.name != _EMBEDDED]
    optional = [
        TensorSpec("noise", "float32", latents),
        TensorSpec("seed", "int64", ("seeds",)),
        *(TensorSpec(f"negative_{spec.name}", spec.dtype, spec.axes) for spec in by_row),
    ]
    parameters = {"denoiser": DENOISER, "max_rows": str(max_rows), "trajectories": str(trajectories)}
    parameters |= {"quantized": QUANTIZED} if has_quantized else {}
    return _join(
        f"name: {_quote(SAMPLER)}",
        'backend: "python"',
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: true }",
        *(_write_tensor("input", spec, optional=spec.name == _EMBEDDED) for spec in specs),
        *(_write_tensor("input", spec, optional=True) for spec in optional),
        *(_write("input", name, dtype, (1,), optional=True) for name, dtype in _SETTINGS.items()),
        _write_tensor("output", TensorSpec("latents", "float32", latents)),
        _write("output", "progress", "int32", (2,)),
        "instance_group [ { count: 1, kind: KIND_CPU } ]",
        *_write_parameters(parameters),
    )


def _write_tensor(kind: str, spec: TensorSpec, has_rows: bool = False, optional: bool = False) -> str:
    sizes = [axis if isinstance(axis, int) else -1 for axis in spec.axes[has_rows:]]
    # Triton has no tensor without axes: it drops this one before the model sees it.
    return _write(kind, spec.name, spec.dtype, sizes or [1], optional, flat=not sizes)


def _write(kind: str, name: str, dtype: str, sizes: Sequence[int], optional: bool = False, flat: bool = False) -> str:
    if dtype not in _TYPES:
        raise ZeusError(
            f"{name}: got {dtype}; expected one of {', '.join(_TYPES)}, which Triton's Python backend takes. "
            "Export the model in another precision."
        )
    words = f"name: {_quote(name)}, data_type: TYPE_{_TYPES[dtype]}, dims: {[*sizes]}"
    return f"{kind} {{ {words}{', reshape { shape: [] }' * flat}{', optional: true' * optional} }}"


def _write_parameters(parameters: Mapping[str, str]) -> list[str]:
    return [
        f"parameters {{ key: {_quote(key)}, value {{ string_value: {_quote(value)} }} }}"
        for key, value in parameters.items()
    ]


def _quote(text: str) -> str:
    return json.dumps(text)


def _join(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
