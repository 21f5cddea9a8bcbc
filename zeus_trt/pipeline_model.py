"""A pipeline that is served: requests run in threads, and their calls of the denoiser meet in one engine."""

import inspect
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.image_maker import ImageMaker, MakerOptions
from zeus_trt.pictures import to_images
from zeus_trt.runtime import Step
from zeus_trt.serving.generation_request import GenerationRequest
from zeus_trt.serving.image_model import Made, OnStep
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.report import Counters
from zeus_trt.serving.ticket import EndedError, FullError, LateError


class PipelineModel:
    """Serves a pipeline by the engine of its bundle; an ``ImageModel``.

    Args:
        options: The pipeline and its bundle.
        max_active: Requests that run at a time, a thread each.
        max_queue: Requests that wait for their begin.
        max_wait: As in ``Batcher``.

    Raises:
        ZeusError: As ``ImageMaker``.
    """

    def __init__(self, options: MakerOptions, max_active: int = 8, max_queue: int = 256, max_wait: float = 0.02):
        self.max_rows = options.max_rows
        self._options, self._max_queue = options, max_queue
        self._maker = ImageMaker(options, max_wait)
        self._pool = ThreadPoolExecutor(max_active, thread_name_prefix="pipeline")
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("submitted", "finished", "failed", "cancelled", "refused", "queued", "active"), 0)
        self._is_closing = False

    def describe(self) -> dict[str, Any]:
        takes = inspect.signature(self._maker.pipeline.__call__).parameters
        labels = None if "prompt" in takes else self._maker.bundle.manifest.labels
        return {
            "model": self._options.model,
            "takes": "prompt" if "prompt" in takes else "label",
            "labels": labels.count if labels else 0,
            "size": "auto",
            "backend": self._maker.backend,
            "guidance_scale": takes["guidance_scale"].default if "guidance_scale" in takes else 1.0,
        }

    def submit(self, asked: GenerationRequest, time_limit: float, on_step: OnStep | None = None) -> "Future[Made]":
        for name in ("min_psnr", "deadline_ms"):
            if getattr(asked, name) is not None:
                raise ZeusError(f"{name}: got it for a pipeline; expected a ratio or a plan. Leave it out.")
        height, width = asked.shape or (None, None)
        request = ImageRequest(
            prompt=asked.prompt or None, negative_prompt=asked.negative_prompt, label=asked.label,
            steps=asked.steps or 1, ratio=asked.ratio, plan=asked.plan, guidance_scale=asked.guidance_scale,
            seed=asked.seed or 0, height=height, width=width,
        )  # fmt: skip
        future: Future[Made] = Future()
        self._take()
        self._pool.submit(self._run, future, request, asked.n, time.monotonic() + time_limit, on_step)
        return future

    @property
    def counters(self) -> Counters:
        with self._lock:
            return replace(self._maker.counters, **self._counts)

    def close(self, cancel: bool = False) -> None:
        self._is_closing = cancel
        self._pool.shutdown()
        self._maker.close()

    def _take(self) -> None:
        with self._lock:
            if self._counts["queued"] >= self._max_queue:
                self._counts["refused"] += 1
                raise FullError(
                    f"queue: got {self._max_queue} requests that wait; expected fewer. Try again later, or raise "
                    "max_queue."
                )
            self._counts["submitted"] += 1
            self._counts["queued"] += 1

    def _run(
        self, future: "Future[Made]", request: ImageRequest, count: int, limit: float, on_step: OnStep | None
    ) -> None:
        def note(step: Step) -> None:
            self._check(future, limit)
            if on_step:
                on_step(step)

        self._change(queued=-1, active=1)
        made, error = None, None
        try:
            self._check(future, limit)
            images, report = self._maker.run_pipeline(request, count, note)
            made = Made(to_images(images), report)
        except BaseException as raised:
            error = raised
        if isinstance(error, EndedError):
            future.cancel()
        is_open = future.set_running_or_notify_cancel()
        self._change(active=-1, **{"cancelled" if not is_open else "failed" if error else "finished": 1})
        if is_open and error is not None:
            future.set_exception(error)
        elif is_open:
            future.set_result(made)  # type: ignore[arg-type]

    def _check(self, future: "Future[Made]", limit: float) -> None:
        """Ends a run that nobody waits for, between two steps."""
        if future.cancelled() or self._is_closing:
            raise EndedError("request: got cancelled. Send it again.")
        if time.monotonic() > limit:
            raise LateError("time_limit: got a request that did not end within it; expected one that does. Raise it.")

    def _change(self, **changes: int) -> None:
        with self._lock:
            for name, change in changes.items():
                self._counts[name] += change
