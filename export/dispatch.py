"""Any model by its name: a pipeline, or a bare model folder."""

from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.bundle import export_bundle
from zeus_trt.export.loading import is_pipeline
from zeus_trt.export.pipeline import export_pipeline
from zeus_trt.runtime.bundle import Bundle


def export_model(
    model: str | Path,
    output: str | Path,
    *,
    component: str | None = None,
    size: tuple[int, int] | None = None,
    null_label: int | None = None,
    **settings: Any,
) -> Bundle:
    """Exports a pipeline folder, a pipeline of the hub by its id, or a bare model folder.

    Args:
        model: The folder or the id.
        output: Folder to make.
        component: As in ``export_pipeline``; pipelines only.
        size: As in ``export_pipeline``; pipelines only.
        null_label: As in ``export_bundle``; bare model folders only.
        **settings: What both take: ``steps``, ``precision``, ``keep_fp32``, ``force``, ``tolerance``, ``overwrite``.

    Raises:
        ZeusError: An option that the other kind takes, or as the two functions do.
    """
    if is_pipeline(model):
        if null_label is not None:
            raise ZeusError(f"null_label: got {null_label} for a pipeline; expected none. Leave it out.")
        return export_pipeline(str(model), output, component=component, size=size, **settings)
    if component or size:
        raise ZeusError("component, size: got one for a bare model folder; expected a pipeline. Leave it out.")
    return export_bundle(model, output, null_label=null_label, **settings)
