"""Tracing again the model that a bundle was exported from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import Capture, capture
from zeus_trt.export.description import digest_weights
from zeus_trt.export.flat import trace_flat
from zeus_trt.export.loading import is_pipeline, load_pipeline
from zeus_trt.export.model import describe_model, load_model
from zeus_trt.export.precision import cast_capture
from zeus_trt.export.settings import choose_settings
from zeus_trt.runtime.bundle.bundle import Bundle


def choose_trace(
    bundle: str | Path | Bundle, model: str | Path | None, arguments: Mapping[str, Any] | None = None
) -> Callable[[], torch.export.ExportedProgram] | None:
    """What gives ``build_engine`` the bundle's denoiser as an exported program; None without a model.

    Args:
        bundle: The bundle, or its folder.
        model: The pipeline or model folder that it was exported from.
        arguments: Those of the export, if it was given some.
    """
    if model is None:
        return None

    def trace() -> torch.export.ExportedProgram:
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        captured, digest = _capture(model, opened.manifest.component, arguments)
        if digest != opened.manifest.weights_sha256:
            raise ZeusError(
                f"model: got {model} with other weights than {opened.path} was exported from; expected the same. "
                "Give that model, or export this one."
            )
        graph = opened.manifest.find_graph()
        return trace_flat(cast_capture(captured, graph.precision, graph.keep_fp32))

    return trace


def _capture(model: str | Path, component: str, arguments: Mapping[str, Any] | None) -> tuple[Capture, str]:
    if is_pipeline(model):
        pipeline = load_pipeline(model)
        captured = capture(pipeline, choose_settings(pipeline, arguments=arguments)[0], component)
        return captured, digest_weights(captured.denoiser)[0]
    loaded = load_model(model)
    return describe_model(loaded), loaded.weights_sha256
