"""The one place that decides whether a name is a bundle, a bare model folder or a pipeline."""

from pathlib import Path
from typing import Any

from zeus_trt.argument_value import read_inputs
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import EAGER, PipelineWorkload, refuse_backend
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.export.loading import BUNDLE, NONE, find_kind
from zeus_trt.open_pipeline import ModelOptions, open_pipeline


def open_model(model: str | Path, **options: Any) -> SessionWorkload | PipelineWorkload:
    """Opens a bundle, a bare model folder, a pipeline folder, or a pipeline of the hub by its id.

    Args:
        model: The folder or the id.
        **options: As in ``ModelOptions``.

    Returns:
        A workload of the bundle, or of the pipeline, with the bundle of ``engine`` if it is given.

    Raises:
        ZeusError: No such model, or an option that has no effect on it or that it refuses.
    """
    asked = ModelOptions(**options)
    if (kind := find_kind(model)) in (BUNDLE, NONE):
        if asked.for_pipelines and kind == BUNDLE:
            name = next(iter(asked.for_pipelines))
            raise ZeusError(f"{name}: got it for a bundle; expected a pipeline. Leave it out.")
        inputs, bundle = read_inputs(asked.inputs), asked.open_bundle(model)
        return SessionWorkload(bundle, asked.labels, asked.guidance_scale, asked.seed, inputs=inputs)
    if asked.inputs:
        raise ZeusError("inputs: got some for a pipeline, which makes its own; expected a bundle. Leave them out.")
    if asked.adapters and asked.engine is None:
        raise ZeusError(
            "adapters: got some for a pipeline without an engine; expected its bundle, which holds them. Give that as "
            "engine."
        )
    if asked.mode is not None:
        raise ZeusError(
            f"mode: got {asked.mode} for a pipeline, which has its own loop; expected a bundle. Leave it out."
        )
    if asked.backend not in (None, EAGER) and asked.engine is None:
        raise refuse_backend(asked.backend)
    if asked.backend == EAGER and asked.engine is not None:
        raise ZeusError("engine: got it with the backend eager, which runs none; expected one of the two. Leave one.")
    return open_pipeline(model, asked)
