"""What makes the pictures of a service."""

import io
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.pictures import to_images
from zeus_trt.runtime import Report, Result, Session, draw_noise
from zeus_trt.runtime.rows import choose_shape, list_given, read_rows, take_rows
from zeus_trt.runtime.steppers import Step
from zeus_trt.serving.batcher import Batcher
from zeus_trt.serving.generation_request import GenerationRequest
from zeus_trt.serving.report import Counters
from zeus_trt.zeus_graph import PRESETS

if TYPE_CHECKING:
    from PIL import Image

OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Made:
    """The pictures of a request.

    Args:
        images: One each.
        report: What the run did.
    """

    images: "list[Image.Image]"
    report: Report


class ImageModel(Protocol):
    """Makes pictures of requests, many at a time."""

    max_rows: int

    def describe(self) -> dict[str, Any]:
        """What a client has to know of it, as JSON data."""
        ...

    def submit(self, asked: GenerationRequest, time_limit: float, on_step: OnStep | None = None) -> "Future[Made]":
        """Takes a request.

        Args:
            asked: The request, checked.
            time_limit: Seconds from now after which it fails.
            on_step: Called with every step, in a thread of the model.

        Raises:
            ZeusError: The model does not take the request; or as ``Batcher.submit``.
        """
        ...

    @property
    def counters(self) -> Counters:
        """What it did so far, and what it does now."""
        ...

    def close(self, cancel: bool = False) -> None:
        """Takes no more requests, and ends all that it has."""
        ...


class BundleModel:
    """A bundle that makes pixels of class labels, of conditioning that stays, or of nothing but noise.

    Args:
        session: A session of the bundle, which is closed with the model.
        guidance_scale: Of requests that name none.
        inputs: Conditioning of every request by name, as in ``read_rows``; picture k of a request takes row k, in turn.
        **settings: Of the ``Batcher``.

    Raises:
        ZeusError: The bundle needs other inputs than class labels, or does not make pictures; or as ``Batcher``.
    """

    def __init__(
        self,
        session: Session,
        guidance_scale: float = 1.0,
        inputs: Mapping[str, Any] | None = None,
        **settings: Any,
    ):
        manifest = session.bundle.manifest
        self._specs = list_given(manifest)
        others = self._specs.keys() - (inputs or {}).keys()
        if others or len(manifest.latents.axes) != 4 or manifest.latents.axes[1] not in (1, 3):
            raise ZeusError(
                f"model: got a bundle with the inputs {', '.join(spec.name for spec in manifest.inputs)}; expected one "
                "that makes pixels of class labels, or a value for every other input. Give them, or serve its pipeline "
                "with the bundle as its engine."
            )
        self._inputs = read_rows(self._specs, manifest.latents.axes[0], inputs or {})
        self._session, self._guidance_scale = session, guidance_scale
        self._batcher = Batcher(session, **settings)
        self.max_rows = settings.get("max_rows", 8)
        self._size = choose_shape(manifest)

    def describe(self) -> dict[str, Any]:
        manifest = self._session.bundle.manifest
        return {
            "model": manifest.model,
            "takes": "label" if manifest.labels else "",
            "labels": manifest.labels.count if manifest.labels else 0,
            "size": f"{self._size[2]}x{self._size[1]}",
            "backend": self._session.backend,
            "guidance_scale": self._guidance_scale,
        }

    def submit(self, asked: GenerationRequest, time_limit: float, on_step: OnStep | None = None) -> "Future[Made]":
        for name in ("prompt", "negative_prompt"):
            if getattr(asked, name):
                raise ZeusError(f"{name}: got it for a model without prompts; expected a label. Leave it out.")
        scale = self._guidance_scale if asked.guidance_scale is None else asked.guidance_scale
        if scale != 1 and self._session.bundle.manifest.labels is None:
            raise ZeusError(
                f"guidance_scale: got {scale:g} for a model without class labels; expected 1. Leave it out."
            )
        future = self._batcher.submit(
            self._condition(asked.label, asked.n), num_steps=asked.steps, **_choose(asked),
            guidance_scale=scale, seed=asked.seeds, noise=self._draw(asked), batch=asked.n, on_step=on_step,
            deadline=asked.deadline_ms and asked.deadline_ms / 1000, time_limit=time_limit,
        )  # fmt: skip
        return follow(future, _finish)

    def warm_up(self) -> None:
        """Makes a picture of one step: what is read or compiled at the first call is ready then."""
        noise = draw_noise((1, *self._size), 0)
        self._session.generate(self._condition(None, 1), num_steps=1, noise=noise)

    @property
    def counters(self) -> Counters:
        return self._batcher.counters

    def close(self, cancel: bool = False) -> None:
        self._batcher.close(cancel)
        self._session.close()

    def _condition(self, label: int | None, count: int) -> dict[str, torch.Tensor]:
        given = take_rows(self._specs, self._session.bundle.manifest.latents.axes[0], self._inputs, range(count))
        return self._session.label_images(None if label is None else [label], count) | given

    def _draw(self, asked: GenerationRequest) -> torch.Tensor | None:
        """Noise of the size that is asked for."""
        axes = self._session.bundle.manifest.latents.axes[2:]
        size = asked.shape or self._size[1:]
        for axis, side in zip(axes, size, strict=True):
            if isinstance(axis, int) and side != axis:
                raise ZeusError(
                    f"size: got {asked.size}; expected {self._size[2]}x{self._size[1]}, that of this model. Leave it "
                    "out."
                )
        return draw_noise((asked.n, self._size[0], *size), asked.seeds)


def follow(future: "Future[Any]", finish: Callable[[Any], Made]) -> "Future[Made]":
    """A future of what ``finish`` makes of a result; cancelling it cancels the other one."""
    made: Future[Made] = Future()

    def end(done: "Future[Any]") -> None:
        if done.cancelled():
            made.cancel()
        elif made.set_running_or_notify_cancel():
            try:
                made.set_result(finish(done.result()))
            except BaseException as error:
                made.set_exception(error)

    def cancel(done: "Future[Made]") -> None:
        if done.cancelled():
            future.cancel()

    made.add_done_callback(cancel)
    future.add_done_callback(end)
    return made


def _finish(result: Result) -> Made:
    return Made(to_images(result.latents), result.report)


def _choose(asked: GenerationRequest) -> Mapping[str, Any]:
    """The plan, in the words of ``Session.generate``."""
    if asked.plan is None:
        return {"ratio": asked.ratio, "min_psnr": asked.min_psnr}
    return {"preset": asked.plan} if asked.plan in PRESETS else {"plan": asked.plan}


def encode_png(image: "Image.Image") -> bytes:
    """The picture as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
