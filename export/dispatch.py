"""Any model by its name: a pipeline, or a bare model folder."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.build import build_engine, check_backend
from zeus_trt.export.bundle import export_bundle
from zeus_trt.export.loading import is_pipeline
from zeus_trt.export.pipeline import export_pipeline
from zeus_trt.export.profile import SizeRange
from zeus_trt.export.retrace import choose_trace
from zeus_trt.export.tensorrt import Progress
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_record import EngineRecord

GRAPH_ITSELF = "onnxruntime"


def export_model(
    model: str | Path,
    output: str | Path,
    *,
    component: str | None = None,
    sizes: Sequence[tuple[int, int]] = (),
    arguments: Mapping[str, Any] | None = None,
    null_label: int | None = None,
    **settings: Any,
) -> Bundle:
    """Exports a pipeline folder, a pipeline of the hub by its id, or a bare model folder.

    Args:
        model: The folder or the id.
        output: Folder to make.
        component: As in ``export_pipeline``; pipelines only.
        sizes: As in ``export_pipeline``; pipelines only.
        arguments: As in ``export_pipeline``; pipelines only.
        null_label: As in ``export_bundle``; bare model folders only.
        **settings: What both take: ``steps``, ``precision``, ``keep_fp32``, ``force``, ``tolerance``, ``overwrite``.

    Raises:
        ZeusError: An option that the other kind takes, or as the two functions do.
    """
    if settings.get("keep_fp32") and settings.get("precision", "fp32") == "fp32":
        raise ZeusError("keep_fp32: got it for an export in fp32; expected fp16 or bf16. Leave it out.")
    if is_pipeline(model):
        if null_label is not None:
            raise ZeusError(f"null_label: got {null_label} for a pipeline; expected none. Leave it out.")
        return export_pipeline(str(model), output, component=component, sizes=sizes, arguments=arguments, **settings)
    if component or sizes or arguments:
        raise ZeusError(
            "component, sizes, arguments: got one for a bare model folder; expected a pipeline. Leave it out."
        )
    return export_bundle(model, output, null_label=null_label, **settings)


def export_with_engines(
    model: str | Path,
    output: str | Path,
    backends: Sequence[str] = (),
    *,
    gpu: str | Sequence[str] | None = None,
    ranges: Mapping[str, SizeRange] | None = None,
    on_progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **settings: Any,
) -> tuple[Bundle, tuple[EngineRecord, ...]]:
    """Exports a model, and builds engines of it. What no backend here can build is refused before the export.

    Args:
        model, output: As in ``export_model``.
        backends: What to build for; ``onnxruntime`` runs the graph itself.
        gpu, ranges, on_progress, say: As in ``build_engine``.
        **settings: As in ``export_model``.

    Raises:
        ZeusError: As the two functions do. A bundle whose engine could not be built is whole, and stays.
    """
    engines = [backend for backend in backends if backend != GRAPH_ITSELF]
    for backend in engines:
        check_backend(backend, gpu)
    bundle = export_model(model, output, **settings)
    build = partial(build_engine, bundle, gpu=gpu, ranges=ranges, on_progress=on_progress, say=say)
    return bundle, tuple(
        build(backend, trace=choose_trace(bundle, model, settings.get("arguments"))) for backend in engines
    )
