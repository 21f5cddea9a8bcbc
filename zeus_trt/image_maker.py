"""A model that makes the pictures of many requests at a time, by one engine."""

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import read_images
from zeus_trt.export.labels import choose_guidance
from zeus_trt.export.loading import PIPELINE, find_kind
from zeus_trt.open_pipeline import load_on_device
from zeus_trt.pictures import find_format, to_images
from zeus_trt.runtime import Bundle, Report, Session, Step, accelerate
from zeus_trt.serving import Batcher, Counters
from zeus_trt.serving.image_request import ImageRequest

_NAMES = {"class_labels": "label"}


@dataclass(frozen=True)
class MakerOptions:
    """How an ``ImageMaker`` opens a model; plain data, which other processes can read.

    Args:
        model: A bundle that makes pixels, or a pipeline (folder or hub id).
        engine: The bundle of a pipeline.
        backend: As in ``Session``.
        max_rows: As in ``Batcher``.
        device: Where it runs; a GPU by default if there is one.
        dtype: As in ``ModelOptions``, for pipelines.
    """

    model: str
    engine: str | None = None
    backend: str = "auto"
    max_rows: int = 8
    device: str | None = None
    dtype: str | None = None

    @property
    def is_pipeline(self) -> bool:
        """Whether the model is a pipeline.

        Raises:
            ZeusError: A pipeline without a bundle, or a bundle with one.
        """
        is_pipeline = find_kind(self.model) == PIPELINE
        if is_pipeline and self.engine is None:
            raise ZeusError(
                "engine: got nothing for a pipeline; expected its bundle. Export the pipeline, and give it."
            )
        for name in ("engine", "dtype"):
            if not is_pipeline and getattr(self, name) is not None:
                raise ZeusError(f"{name}: got it for a bundle; expected a pipeline. Leave it out.")
        return is_pipeline

    def open_bundle(self) -> Bundle:
        """The bundle whose engine runs."""
        return Bundle.open(self.engine if self.is_pipeline and self.engine else self.model)


class ImageMaker(AbstractContextManager):
    """Makes pictures in any number of threads, whose calls of the denoiser meet in one engine.

    Args:
        options: The model.
        max_wait: As in ``Batcher``.

    Raises:
        ZeusError: A model that does not open.
    """

    def __init__(self, options: MakerOptions, max_wait: float = 0.02):
        with ExitStack() as stack:
            self.bundle = options.open_bundle()
            self._session = stack.enter_context(Session(self.bundle, backend=options.backend, device=options.device))
            self._batcher = stack.enter_context(Batcher(self._session, max_rows=options.max_rows, max_wait=max_wait))
            self.pipeline: Any = (
                load_on_device(options.model, options.device, options.dtype) if options.is_pipeline else None
            )
            if self.pipeline and "num_frames" in inspect.signature(self.pipeline.__call__).parameters:
                raise ZeusError(
                    f"model: got {options.model}, which makes videos; expected pictures. Use `zeus-trt run`."
                )
            self._closing = stack.pop_all()
        self._lock, self._is_checked = threading.Lock(), False

    @property
    def backend(self) -> str:
        """The engine's name."""
        return self._session.backend

    @property
    def counters(self) -> Counters:
        """Those of the batcher."""
        return self._batcher.counters

    def make(self, request: ImageRequest) -> "tuple[torch.Tensor, Report]":
        """Makes a picture; waits for it.

        Returns:
            Pixels (1, channels, height, width), -1..1, and what the run did.

        Raises:
            ZeusError: A request that does not fit the model, or as ``Session.generate`` and ``accelerate``.
        """
        return self._make_alone(request) if self.pipeline is None else self.run_pipeline(request)

    def close(self) -> None:
        """Closes the engine."""
        self._closing.close()

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def _make_alone(self, request: ImageRequest) -> tuple[torch.Tensor, Report]:
        manifest = self._session.bundle.manifest
        request.check_for(manifest)
        types = {spec.name: getattr(torch, spec.dtype) for spec in manifest.inputs}
        inputs = {name: _read_rows(name, value, types.get(name)) for name, value in (request.inputs or {}).items()}
        if request.label is not None:
            inputs = self._session.label_images([request.label], 1)
        scale = choose_guidance(
            request.guidance_scale, manifest.labels is not None, reads_scale=manifest.guidance == "embedded"
        )
        result = self._batcher.submit(
            inputs, num_steps=request.steps, seed=[request.seed], guidance_scale=scale, mode=request.mode,
            plan=request.plan, ratio=request.ratio, window=request.window, preset=request.preset,
            predictor=request.predictor,
        ).result()  # fmt: skip
        return result.latents.float().cpu().clamp(-1, 1), result.report

    def run_pipeline(
        self, request: ImageRequest, count: int = 1, on_step: Callable[[Step], Any] | None = None
    ) -> tuple[torch.Tensor, Report]:
        """Makes pictures by the pipeline.

        Args:
            request: The prompt or label of all of them.
            count: Pictures; picture k has the noise of ``seed`` + k.
            on_step: Called after every step.

        Returns:
            Pixels (count, channels, height, width), -1..1, and what the run did.

        Raises:
            ZeusError: As ``make``.
        """
        request.check_for(None)
        with self._lock:  # the first run alone compares the engine with the denoiser
            if not self._is_checked:
                made = self._run(request, count, on_step, check=True)
                self._is_checked = True
                return made
        return self._run(request, count, on_step, check=False)

    def _run(
        self, request: ImageRequest, count: int, on_step: Callable[[Step], Any] | None, check: bool
    ) -> tuple[torch.Tensor, Report]:
        last: list[torch.Tensor] = []

        def note(step: Step) -> None:
            last[:] = [step.latents]
            if on_step:
                on_step(step)

        plan, session = request.make_planner(), self._batcher.session
        with accelerate(self.pipeline, plan=plan, engine=session, on_step=note, check=check) as fast:
            output = fast(**self._list_arguments(request, count), return_dict=False)
        return read_images(output[0], last[0].float().cpu()), fast.report

    def _list_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        takes = inspect.signature(self.pipeline.__call__).parameters
        rows = {"prompt": request.prompt, "class_labels": request.label, "negative_prompt": request.negative_prompt}
        asked: dict[str, Any] = {name: [value] * count for name, value in rows.items() if value is not None}
        for name in ("guidance_scale", "height", "width"):
            if (value := getattr(request, name)) is not None:
                asked[name] = value
        for name in [name for name in asked if name not in takes]:
            raise ZeusError(
                f"{_NAMES.get(name, name)}: got it for a {type(self.pipeline).__name__}; expected none. Leave it out."
            )
        for name in [name for name in ("prompt", "class_labels") if name in takes and name not in asked]:
            raise ZeusError(
                f"{_NAMES.get(name, name)}: got nothing for a {type(self.pipeline).__name__}; expected one. Give it."
            )
        if "output_type" in takes:
            asked["output_type"] = "pt" if getattr(self.pipeline, "vae", None) is not None else "latent"
        return asked | {
            "num_inference_steps": request.steps,
            "generator": [torch.Generator().manual_seed(request.seed + k) for k in range(count)],
        }


def encode_picture(images: torch.Tensor, ending: str) -> bytes:
    """The file of one picture.

    Args:
        images: (1, channels, height, width), -1..1.
        ending: Such as ``.png``.

    Raises:
        ZeusError: An ending of no picture, or a video.
    """
    if images.ndim != 4:
        raise ZeusError(f"picture: got {images.ndim - 1} axes, a video; expected a picture. Use `zeus-trt run`.")
    file = BytesIO()
    to_images(images)[0].save(file, format=find_format(Path(f"picture{ending}")))
    return file.getvalue()


def _read_rows(name: str, value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """One row of conditioning (1, ...), of nested lists."""
    try:
        return torch.tensor([value], dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ZeusError(f"inputs: got {name}, which is no tensor ({error}); expected nested lists. Fix it.") from error
