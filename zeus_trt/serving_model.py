"""What `zeus-trt serve` serves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from zeus_trt.argument_value import read_inputs
from zeus_trt.errors import ZeusError
from zeus_trt.export.labels import choose_guidance
from zeus_trt.export.loading import BUNDLE, find_kind
from zeus_trt.image_maker import MakerOptions
from zeus_trt.pipeline_model import PipelineModel
from zeus_trt.runtime import Bundle, Session
from zeus_trt.serving.image_model import BundleModel, ImageModel
from zeus_trt.serving.service import Service

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class ServedModel:
    """How a model is opened: plain data, which other processes can read.

    Args:
        model: A bundle that makes pixels of class labels, or of nothing but noise; or a pipeline, with ``engine``.
        engine: The bundle of a pipeline.
        dtype: As in ``ModelOptions``, for pipelines.
        backend, device: As in ``Session``.
        max_rows, max_wait, max_queue: As in ``Batcher``.
        inputs: Conditioning of every request, as ``read_inputs`` takes it; for bundles.
    """

    model: str | Path
    engine: str | Path | None = None
    dtype: str | None = None
    backend: str = "auto"
    device: str | None = None
    max_rows: int = 8
    max_wait: float = 0.02
    max_queue: int = 256
    inputs: Sequence[str] = ()

    def open_service(self) -> Service:
        """The service of this model; it is for ``zeus_trt.serving.app.create_app``.

        Raises:
            ZeusError: The model does not open, or it is of a kind that cannot be served.
        """
        return Service(self._open)

    def _open(self) -> ImageModel:
        engine = None if self.engine is None else str(self.engine)
        options = MakerOptions(str(self.model), engine, self.backend, self.max_rows, self.device, self.dtype)
        if options.is_pipeline and self.inputs:
            raise ZeusError("inputs: got some for a pipeline, which makes its own; expected a bundle. Leave them out.")
        if options.is_pipeline:
            return PipelineModel(options, max_queue=self.max_queue, max_wait=self.max_wait)
        if find_kind(self.model) != BUNDLE:
            raise ZeusError(f"model: got {self.model}; expected a bundle. Export it: zeus-trt export {self.model}.")
        session = Session(Bundle.open(self.model), backend=self.backend, device=self.device)
        manifest = session.bundle.manifest
        scale = choose_guidance(None, manifest.labels is not None)
        make = partial(
            BundleModel, session, scale, read_inputs(self.inputs), max_rows=self.max_rows, max_wait=self.max_wait
        )
        try:
            model = make(max_queue=self.max_queue)
            model.warm_up()
            return model
        except ZeusError:
            session.close()
            raise


def check_packages() -> None:
    """Raises ZeusError where a package of the extra ``serve`` is not installed."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ZeusError(
            f"serve: got no package {', '.join(missing)}; expected the extra serve. Install it: pip install "
            "'zeus-trt[serve]'."
        )
