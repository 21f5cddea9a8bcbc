"""What makes the pictures of a service."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.pictures import to_images
from zeus_trt.runtime import Report, Session, draw_noise
from zeus_trt.runtime.rows import choose_shape, list_given, read_some, take_rows
from zeus_trt.runtime.steppers import Step
from zeus_trt.serving.batcher import Batcher
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.report import Counters

if TYPE_CHECKING:
    from PIL import Image

Draw = Callable[[], "list[Image.Image]"]
OnStep = Callable[[Step, Draw | None], None]
"""Called with a step, and with what draws the pictures so far, if anything does."""


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

    def submit(
        self, asked: ImageRequest, time_limit: float | None = None, on_step: OnStep | None = None
    ) -> "Future[Made]":
        """Takes a request.

        Args:
            asked: The request, checked.
            time_limit: Seconds from now after which it fails; none by default.
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
    """A bundle that makes pixels, of class labels, other conditioning or noise alone.

    Args:
        session: A session of the bundle, which is closed with the model.
        guidance_scale: Of requests that name none.
        inputs: Conditioning by name, as in ``read_rows``, of requests that give none of that name: picture k of a
            request takes row k, in turn.
        **settings: Of the ``Batcher``.

    Raises:
        ZeusError: The bundle does not make pictures; or as ``Batcher``.
    """

    def __init__(
        self, session: Session, guidance_scale: float = 1.0, inputs: Mapping[str, Any] | None = None, **settings: Any
    ):
        manifest = session.bundle.manifest
        if len(manifest.latents.axes) != 4 or manifest.latents.axes[1] not in (1, 3):
            raise ZeusError(
                f"model: got a bundle whose latents are {manifest.latents.axes}; expected one that makes pixels. Serve "
                "its pipeline, with the bundle as its engine."
            )
        self._specs = list_given(manifest)
        self._inputs = read_some(self._specs, manifest.latents.axes[0], inputs or {})
        self._session, self._guidance_scale = session, guidance_scale
        self._batcher = Batcher(session, **settings)
        self.max_rows = settings.get("max_rows", 8)
        self._size = choose_shape(manifest)

    def describe(self) -> dict[str, Any]:
        manifest = self._session.bundle.manifest
        return {
            "model": manifest.model,
            "takes": "label" if manifest.labels else "inputs" if manifest.inputs[2:] else "",
            "labels": manifest.labels.count if manifest.labels else 0,
            "size": f"{self._size[2]}x{self._size[1]}",
            "backend": self._session.backend,
            "guidance_scale": self._guidance_scale,
            "adapters": self._session.bundle.adapters,
        }

    def submit(
        self, asked: ImageRequest, time_limit: float | None = None, on_step: OnStep | None = None
    ) -> "Future[Made]":
        manifest = self._session.bundle.manifest
        asked.check_for(manifest, is_pipeline=False)
        scale = self._guidance_scale if asked.guidance_scale is None else asked.guidance_scale
        if scale != 1 and manifest.labels is None and manifest.guidance != "embedded":
            raise ZeusError(
                f"guidance_scale: got {scale:g} for a model without class labels; expected 1. Leave it out."
            )

        def note(step: Step) -> None:
            assert on_step
            on_step(step, partial(to_images, step.latents))

        noise = draw_noise((asked.n, self._size[0], *(asked.shape or self._size[1:])), asked.seeds)
        future = self._batcher.submit(
            self._condition(asked), **asked.settings, guidance_scale=scale, seed=asked.seeds, noise=noise,
            batch=asked.n, mode=asked.mode, on_step=note if on_step else None, time_limit=time_limit,
            deadline=asked.deadline_ms and asked.deadline_ms / 1000, adapter=asked.adapter,
        )  # fmt: skip
        return follow(future, lambda result: Made(to_images(result.latents), result.report))

    def warm_up(self) -> None:
        """Makes a picture if its conditioning is known: what is read or compiled at the first call is ready then."""
        if self._specs.keys() == self._inputs.keys():
            noise = draw_noise((1, *self._size), 0)
            self._session.generate(self._condition(ImageRequest()), num_steps=1, noise=noise)

    @property
    def counters(self) -> Counters:
        return self._batcher.counters

    def close(self, cancel: bool = False) -> None:
        self._batcher.close(cancel)
        self._session.close()

    def _condition(self, asked: ImageRequest) -> dict[str, torch.Tensor]:
        manifest = self._session.bundle.manifest
        given = take_rows(self._specs, manifest.latents.axes[0], self._inputs, range(asked.n))
        if asked.inputs is None:
            return given | self._session.label_images(None if asked.label is None else [asked.label], asked.n)
        types = {spec.name: getattr(torch, spec.dtype) for spec in manifest.inputs}
        return given | {name: _repeat(name, value, types.get(name), asked.n) for name, value in asked.inputs.items()}


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


def _repeat(name: str, value: Any, dtype: torch.dtype | None, count: int) -> torch.Tensor:
    """Rows of conditioning (count, ...), of nested lists."""
    try:
        return torch.tensor([value] * count, dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ZeusError(f"inputs: got {name}, which is no tensor ({error}); expected nested lists. Fix it.") from error
