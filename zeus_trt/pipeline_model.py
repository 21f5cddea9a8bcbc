"""A pipeline that is served: requests run in threads, and their calls of the denoiser meet in one engine."""

import heapq
import inspect
import itertools
import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import read_images
from zeus_trt.pictures import to_images
from zeus_trt.runtime import Session, Step, accelerate
from zeus_trt.runtime.menu import Aim, Offer
from zeus_trt.runtime.pipelines.denoisers import check_plain
from zeus_trt.serving import Batcher, Counters
from zeus_trt.serving.dispatcher import PATIENCE
from zeus_trt.serving.image_model import Draw, Made, OnStep
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.lanes import MAX_ADAPTERS, has_room
from zeus_trt.serving.ticket import EndedError, FullError, LateError

_NAMES = {"class_labels": "label", "height": "size"}


class PipelineModel:
    """Serves a pipeline by the engine of its bundle; an ``ImageModel``.

    Args:
        pipeline: A diffusers pipeline; it is not touched.
        session: A session of its bundle, which is closed with the model.
        max_active: Requests that run at a time, a thread each.
        max_queue: Requests that wait for their begin.
        **settings: Of the ``Batcher``.

    Raises:
        ZeusError: The pipeline makes videos; or as ``Batcher``.
    """

    def __init__(self, pipeline: Any, session: Session, max_active: int = 8, max_queue: int = 256, **settings: Any):
        check_plain(pipeline)
        self._takes = inspect.signature(pipeline.__call__).parameters
        if "num_frames" in self._takes:
            raise ZeusError(
                f"model: got a {type(pipeline).__name__}, which makes videos; expected pictures. Run it alone."
            )
        self.max_rows = settings.get("max_rows", 8)
        self._pipeline, self._session = pipeline, session
        self._max_active, self._max_queue = max_active, max_queue
        self._max_adapters = settings.get("max_adapters", MAX_ADAPTERS)
        self._batcher = Batcher(session, **settings)
        self._pool = ThreadPoolExecutor(max_active, thread_name_prefix="pipeline")
        self._lock, self._first = threading.Lock(), threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_closing = False
        self._checked: set[bool] = set()  # whether requests have an adapter
        self._running: list[_Job] = []
        self._counts = dict.fromkeys(("submitted", "finished", "failed", "cancelled", "refused", "active"), 0)
        self._queue: list[_Job] = []
        self._numbers = itertools.count()
        self._seconds = (0.0, 0.0)  # of the last run: outside of its loop, and per call in it

    def describe(self) -> dict[str, Any]:
        labels = None if "prompt" in self._takes else self._session.bundle.manifest.labels
        return {
            "model": str(getattr(self._pipeline, "name_or_path", None) or type(self._pipeline).__name__),
            "takes": "prompt" if "prompt" in self._takes else "label",
            "labels": labels.count if labels else 0,
            "size": "auto",
            "backend": self._session.backend,
            "guidance_scale": self._takes["guidance_scale"].default if "guidance_scale" in self._takes else 1.0,
            "adapters": self._session.bundle.adapters,
        }

    def submit(
        self, asked: ImageRequest, time_limit: float | None = None, on_step: OnStep | None = None
    ) -> "Future[Made]":
        asked.check_for(self._session.bundle.manifest, is_pipeline=True)
        now = time.monotonic()
        limit = math.inf if time_limit is None else now + time_limit
        due = now + (PATIENCE if asked.deadline_ms is None else asked.deadline_ms / 1000)
        job = _Job(due, next(self._numbers), asked, self._list_arguments(asked), limit, on_step)
        self._take(job)
        self._pool.submit(self._run)
        return job.future

    @property
    def counters(self) -> Counters:
        with self._lock:
            return replace(self._batcher.counters, queued=len(self._queue), **self._counts)

    def close(self, cancel: bool = False) -> None:
        self._is_closing = cancel
        self._pool.shutdown()
        self._batcher.close(cancel)
        self._session.close()

    def _list_arguments(self, asked: ImageRequest) -> dict[str, Any]:
        """Those of the pipeline's call, but for the noise."""
        rows = {"prompt": asked.prompt or None, "class_labels": asked.label, "negative_prompt": asked.negative_prompt}
        height, width = asked.shape or (None, None)
        plain = {"guidance_scale": asked.guidance_scale, "height": height, "width": width}
        given: dict[str, Any] = {name: [value] * asked.n for name, value in rows.items() if value is not None}
        given |= {name: value for name, value in plain.items() if value is not None}
        kind = type(self._pipeline).__name__
        for name in [name for name in given if name not in self._takes]:
            raise ZeusError(f"{_NAMES.get(name, name)}: got it for a {kind}; expected none. Leave it out.")
        for name in [name for name in ("prompt", "class_labels") if name in self._takes and name not in given]:
            raise ZeusError(f"{_NAMES.get(name, name)}: got nothing for a {kind}; expected one. Give it.")
        if "output_type" in self._takes:
            given["output_type"] = "pt" if getattr(self._pipeline, "vae", None) is not None else "latent"
        return {**given, "num_inference_steps": asked.steps, "return_dict": False}

    def _take(self, job: "_Job") -> None:
        with self._lock:
            if len(self._queue) >= self._max_queue:
                self._counts["refused"] += 1
                raise FullError(
                    f"queue: got {self._max_queue} requests that wait; expected fewer. Try again later, or raise "
                    "max_queue."
                )
            self._counts["submitted"] += 1
            heapq.heappush(self._queue, job)
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        running = (job.asked.adapter for job in self._running)
        return has_room(self._queue[0].asked.adapter, running, self._max_adapters)

    def _run(self) -> None:
        """Runs the request that is due first."""
        with self._changed:
            self._changed.wait_for(self._may_begin)
            job = heapq.heappop(self._queue)
            self._running.append(job)
            self._counts["active"] += 1
        made, error = None, None
        try:
            self._check(job)
            made = self._make(job)
        except BaseException as raised:
            error = raised
        if isinstance(error, EndedError):
            job.future.cancel()
        is_open = job.future.set_running_or_notify_cancel()
        with self._changed:
            self._running.remove(job)
            self._changed.notify_all()
            self._counts["active"] -= 1
            self._counts["cancelled" if not is_open else "failed" if error else "finished"] += 1
        if is_open and error is not None:
            job.future.set_exception(error)
        elif is_open:
            job.future.set_result(made)  # type: ignore[arg-type]

    def _make(self, job: "_Job") -> Made:
        kind = job.asked.adapter is not None
        if kind in self._checked:
            return self._make_one(job, check=False)
        with self._first:  # one run compares the engine with the denoiser before all others
            made = self._make_one(job, check=kind not in self._checked)
            self._checked.add(kind)
            return made

    def _make_one(self, job: "_Job", check: bool) -> Made:
        last: list[torch.Tensor] = []

        def note(step: Step) -> None:
            last[:] = [step.latents]
            self._check(job)
            if job.on_step:
                job.on_step(step, self._choose_preview(job.asked, step.latents))

        plan = {name: value for name, value in job.asked.settings.items() if name != "num_steps"}
        noise = [torch.Generator().manual_seed(seed) for seed in job.asked.seeds]
        aim = None if job.asked.deadline_ms is None else self._choose_aim(job)
        adapter = job.asked.adapter
        session = self._batcher.open_session(adapter) if adapter else self._batcher.session
        began = time.monotonic()
        with accelerate(
            self._pipeline, engine=session, adds_adapter=bool(adapter), on_step=note, check=check, aim=aim, **plan
        ) as fast:
            output = fast(**job.arguments, generator=noise)
        report = fast.report
        self._seconds = time.monotonic() - began - report.total_seconds, report.total_seconds / report.nfe
        return Made(to_images(read_images(output[0], last[0].float().cpu())), report)

    def _choose_preview(self, asked: ImageRequest, latents: torch.Tensor) -> Draw | None:
        """What draws latents: they are pixels, or the decoder takes them as they are and pictures are asked for."""
        if (vae := getattr(self._pipeline, "vae", None)) is None:
            return partial(to_images, latents) if latents.ndim == 4 and latents.shape[1] in (1, 3) else None
        channels = getattr(vae.config, "latent_channels", None)
        if asked.partial_images is None or latents.ndim != 4 or latents.shape[1] != channels:
            return None
        scaled = latents.to(vae.dtype) / vae.config.scaling_factor + (getattr(vae.config, "shift_factor", None) or 0.0)
        return lambda: to_images(vae.decode(scaled, return_dict=False)[0].float())

    def _choose_aim(self, job: "_Job") -> Aim:
        """The best plan that ends in time, at the speed of the last runs; requests that wait are to have as much."""
        waiting = len(self._queue)
        rounds = 1 + waiting / self._max_active
        other, per_call = self._seconds

        def fits(offer: Offer) -> bool:
            return other + offer.cost * per_call * rounds <= job.due - time.monotonic()

        return Aim(fits=fits, load=f" with {waiting} waiting" if waiting else "")

    def _check(self, job: "_Job") -> None:
        """Ends a run that nobody waits for, between two steps."""
        if job.future.cancelled() or self._is_closing:
            raise EndedError("request: got cancelled. Send it again.")
        if time.monotonic() > job.limit:
            raise LateError("time_limit: got a request that did not end within it; expected one that does. Raise it.")


@dataclass(order=True)
class _Job:
    """A request: those that are due earlier go first."""

    due: float
    number: int
    asked: ImageRequest = field(compare=False)
    arguments: dict[str, Any] = field(compare=False)
    limit: float = field(compare=False)
    on_step: OnStep | None = field(compare=False)
    future: "Future[Made]" = field(default_factory=Future, compare=False)
