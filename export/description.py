"""What the manifest of a bundle says of an exported denoiser."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeus_trt.export.capture import Capture
from zeus_trt.export.strength import find_strength_rule
from zeus_trt.runtime.bundle.branch import Branch
from zeus_trt.runtime.bundle.manifest import Graph, Labels, Manifest
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME, TensorSpec
from zeus_trt.runtime.pipelines.module_state import read_adapters
from zeus_trt.runtime.pipelines.weights_digest import digest_weights
from zeus_trt.zeus_graph import json_file


def describe(
    captured: Capture,
    rules: SizeRules,
    graph: Graph,
    *,
    model: str,
    prediction_type: str,
    labels: Labels | None = None,
    pipeline: Any = None,
    branches: Sequence[Branch] = (),
) -> Manifest:
    """The manifest of what was exported, without versions and files.

    Args:
        captured: The call that was exported.
        rules: What the graph asks of its sizes, as tracing found it.
        graph: What was exported, and how it was verified.
        model: Name of the model.
        prediction_type: What it predicts, in diffusers' words.
        labels: Its class labels, if a runtime draws them.
        pipeline: The pipeline that it was captured from.
        branches: Those of the model's code on values, of which the graph has one side.
    """
    seen = {record.shape[0] for record in graph.verification}
    border = captured.border
    weights, adapters = digest_weights(captured.denoiser)
    batch = captured.inputs[0].axes[0]
    return Manifest(
        model=model,
        component=captured.component,
        denoiser_class=type(captured.denoiser).__name__,
        denoiser_config=_to_json(getattr(captured.denoiser, "config", {})),
        weights_sha256=weights,
        prediction_type=prediction_type,
        inputs=captured.inputs,
        output=TensorSpec(OUTPUT_NAME, "float32", captured.output_axes, "output"),
        symbols=tuple(
            replace(symbol, observed=tuple(sorted({*symbol.observed, *seen}))) if symbol.name == batch else symbol
            for symbol in rules.symbols
        ),
        labels=labels,
        graphs=(graph,),
        versions={},
        pipeline_class=type(pipeline).__name__ if pipeline else None,
        constants=_to_json(captured.constants),
        guidance=captured.guidance,
        guidance_factor=captured.guidance_factor,
        timestep_scale=border.timestep_scale,
        constant_axis=border.constant_axis,
        variance_axis=border.variance_axis,
        unsteppable=border.unsteppable,
        strength_rule=find_strength_rule(pipeline) if pipeline else None,
        relations=rules.relations,
        adapters=read_adapters(captured.denoiser),
        adapters_sha256=adapters,
        layout=captured.layout,
        masks=tuple(captured.masks.known),
        is_bare=captured.is_bare,
        branches=tuple(branches),
    )


def _to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in values.items() if name != "_name_or_path"}  # a place on this machine
    return json_file.plain(json.loads(json.dumps(plain, default=str)))
