"""A model that is served: it may be opened anew, and ends after its requests."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.serving.image_model import ImageModel, Made, OnStep
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving.report import Counters

_NOW = ("queued", "active", "waiting")  # the rest only grows


class ClosingError(ZeusError):
    """The service ends, and takes no more requests."""


class Service:
    """A model, and the requests that it has.

    Args:
        open_model: Opens the model; it is called again by ``reload``.

    Raises:
        ZeusError: As ``open_model``.
    """

    def __init__(self, open_model: Callable[[], ImageModel]):
        self._open = open_model
        self.model = open_model()
        self.is_draining = False
        self._changed = threading.Condition()
        self._reloading = threading.Lock()
        self._running = 0
        self._old: list[ImageModel] = []
        self._past = Counters()

    @property
    def running(self) -> int:
        """Requests that have no result yet."""
        return self._running

    @property
    def counters(self) -> Counters:
        """What all models did so far, and what they do now."""
        with self._changed:
            return _add(self._past, *(model.counters for model in (*self._old, self.model)))

    def submit(self, asked: ImageRequest, time_limit: float, on_step: OnStep | None = None) -> "Future[Made]":
        """As ``ImageModel.submit``.

        Raises:
            ClosingError: The service ends.
        """
        with self._changed:  # no model is closed between the choice and the submission
            if self.is_draining:
                raise ClosingError("service: got a request while it ends; expected an open one. Ask another.")
            future = self.model.submit(asked, time_limit, on_step)
            self._running += 1
        future.add_done_callback(self._forget)
        return future

    def reload(self) -> None:
        """Opens the model anew, for the requests that come; those that run end with the old one.

        Raises:
            ZeusError: The new model does not open; the old one goes on.
        """
        with self._reloading:
            model = self._open()
            with self._changed:
                old, self.model = self.model, model
                self._old.append(old)
            old.close()
            with self._changed:
                self._old.remove(old)
                self._past = dataclasses.replace(_add(self._past, old.counters), **dict.fromkeys(_NOW, 0))

    def drain(self) -> None:
        """Takes no more requests, and waits for those that run."""
        self.is_draining = True
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def close(self, cancel: bool = False) -> None:
        """Ends all requests, and closes the model."""
        self.is_draining = True
        with self._reloading:
            self.model.close(cancel)

    def _forget(self, future: "Future[Any]") -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


def _add(*counters: Counters) -> Counters:
    names = [field.name for field in dataclasses.fields(Counters)]
    return Counters(**{name: sum(getattr(one, name) for one in counters) for name in names})
