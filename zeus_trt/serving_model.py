"""What `zeus-trt serve` and `generate-batch` run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from zeus_trt.argument_value import read_inputs
from zeus_trt.errors import ZeusError
from zeus_trt.export.labels import choose_guidance
from zeus_trt.export.loading import BUNDLE, PIPELINE, find_kind
from zeus_trt.open_pipeline import load_on_device
from zeus_trt.pipeline_model import PipelineModel
from zeus_trt.runtime import Bundle, Session
from zeus_trt.serving.image_model import BundleModel, ImageModel
from zeus_trt.serving.lanes import MAX_ADAPTERS
from zeus_trt.serving.service import Service

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class ServedModel:
    """How a model is opened that makes the pictures of many requests by one engine: plain data for other processes.

    Args:
        model: A bundle that makes pixels; or a pipeline, with ``engine``.
        engine: The bundle of a pipeline.
        dtype: As in ``ModelOptions``, for pipelines.
        backend, device: As in ``Session``.
        max_rows, max_wait, max_queue, max_adapters: As in ``Batcher``.
        inputs: Conditioning of requests that give none, as ``read_inputs`` takes it; for bundles.
    """

    model: str | Path
    engine: str | Path | None = None
    dtype: str | None = None
    backend: str = "auto"
    device: str | None = None
    max_rows: int = 8
    max_wait: float = 0.02
    max_queue: int = 256
    max_adapters: int = MAX_ADAPTERS
    inputs: Sequence[str] = ()

    @property
    def is_pipeline(self) -> bool:
        """Whether the model is a pipeline.

        Raises:
            ZeusError: A pipeline without a bundle, a bundle with one, or a model of another kind.
        """
        kind = find_kind(self.model)
        if kind not in (BUNDLE, PIPELINE):
            raise ZeusError(f"model: got {self.model}; expected a bundle. Export it: zeus-trt export {self.model}.")
        if kind == PIPELINE and self.engine is None:
            raise ZeusError(
                "engine: got nothing for a pipeline; expected its bundle. Export the pipeline, and give it."
            )
        if kind == PIPELINE and self.inputs:
            raise ZeusError("inputs: got some for a pipeline, which makes its own; expected a bundle. Leave them out.")
        for name in ("engine", "dtype"):
            if kind == BUNDLE and getattr(self, name) is not None:
                raise ZeusError(f"{name}: got it for a bundle; expected a pipeline. Leave it out.")
        return kind == PIPELINE

    def open_bundle(self) -> Bundle:
        """The bundle whose engine runs."""
        return Bundle.open(self.engine if self.is_pipeline and self.engine else self.model)

    def open_service(self) -> Service:
        """The service of this model; it is for ``zeus_trt.serving.app.create_app``.

        Raises:
            ZeusError: As ``open``.
        """
        return Service(self.open)

    def open(self) -> ImageModel:
        """Opens the model.

        Raises:
            ZeusError: The model does not open, or it is of a kind that cannot be served.
        """
        session = Session(self.open_bundle(), backend=self.backend, device=self.device)
        settings = {name: getattr(self, name) for name in ("max_rows", "max_wait", "max_queue", "max_adapters")}
        try:
            if self.is_pipeline:
                pipeline = load_on_device(self.model, self.device, self.dtype)
                return PipelineModel(pipeline, session, **settings)
            manifest = session.bundle.manifest
            scale = choose_guidance(None, manifest.labels is not None)
            model = BundleModel(session, scale, read_inputs(self.inputs), **settings)
            model.warm_up()
            return model
        except BaseException:
            session.close()
            raise


def check_packages() -> None:
    """Raises ZeusError where a package of the extra ``serve`` is not installed."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ZeusError(
            f"serve: got no package {', '.join(missing)}; expected the extra serve. Install it: pip install "
            "'zeus-trt[serve]'."
        )
