"""What the manifest of a bundle says of an exported denoiser."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from zeus_trt.export.capture import Capture, Input
from zeus_trt.export.strength import find_strength_rule
from zeus_trt.runtime.bundle.manifest import OUTPUT_NAME, Labels, Manifest, TensorSpec, Verification, name_dtype
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.pipelines.module_state import read_adapters
from zeus_trt.zeus_graph import json_file


def describe(
    captured: Capture,
    rules: SizeRules,
    records: tuple[Verification, ...],
    *,
    model: str,
    weights_sha256: str,
    prediction_type: str,
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    labels: Labels | None = None,
    pipeline: Any = None,
) -> Manifest:
    """The manifest of what was exported, without versions and files.

    Args:
        captured: The call that was exported.
        rules: What the graph asks of its sizes, as tracing found it.
        records: How it was verified.
        model: Name of the model.
        weights_sha256: Digest of its weights.
        prediction_type: What it predicts, in diffusers' words.
        precision: That of the graph.
        keep_fp32: Patterns of the modules that stay in float32.
        labels: Its class labels, if a runtime draws them.
        pipeline: The pipeline that it was captured from.
    """
    seen = {record.shape[0] for record in records}
    batch = captured.inputs[0].axes[0]
    return Manifest(
        model=model,
        component=captured.component,
        denoiser_class=type(captured.denoiser).__name__,
        denoiser_config=_to_json(captured.denoiser.config),
        weights_sha256=weights_sha256,
        prediction_type=prediction_type,
        inputs=tuple(_describe_input(spec) for spec in captured.inputs),
        output=TensorSpec(OUTPUT_NAME, name_dtype(captured.inputs[0].example), captured.output_axes, "output"),
        symbols=tuple(
            replace(symbol, observed=tuple(sorted({*symbol.observed, *seen}))) if symbol.name == batch else symbol
            for symbol in rules.symbols
        ),
        labels=labels,
        verification=records,
        versions={},
        pipeline_class=type(pipeline).__name__ if pipeline else None,
        constants=_to_json(captured.constants),
        guidance=captured.guidance,
        guidance_factor=captured.guidance_factor,
        state_axes=captured.state_axes,
        timestep_scale=captured.timestep_scale,
        precision=precision,
        keep_fp32=tuple(keep_fp32),
        strength_rule=find_strength_rule(pipeline) if pipeline else None,
        relations=rules.relations,
        adapters=read_adapters(captured.denoiser),
    )


def digest_weights(denoiser: torch.nn.Module) -> str:
    """SHA-256 over names, dtypes and bytes of the weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(denoiser.state_dict().items()):
        digest.update(f"{name} {name_dtype(tensor)} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _describe_input(spec: Input) -> TensorSpec:
    dtype = name_dtype(spec.example) if isinstance(spec.example, torch.Tensor) else "int64"
    return TensorSpec(spec.name, dtype, spec.axes, spec.role, spec.value)


def _to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in values.items() if name != "_name_or_path"}  # a place on this machine
    return json_file.plain(json.loads(json.dumps(plain, default=str)))
