"""A pipeline in the place of another: it reads that one's parts when it is used, and hears of each of their calls."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.pipelines.stand_in import count, imitate, is_scheduler, is_stand_in, subclass

_NOTHING = object()


@dataclass(frozen=True)
class _Given:
    """A part that the proxy was given: it counts until the pipeline is given another one."""

    part: Any
    instead_of: Any


@dataclass(frozen=True)
class _Shown:
    """The object that the proxy shows in the place of a part."""

    part: Any
    look: Any
    stand_in: Any


class Proxy:
    """The state behind a proxy pipeline, and the methods that answer its calls.

    A run assigns attributes to the proxy only. Between runs, methods such as ``enable_model_cpu_offload`` assign to
    the pipeline, but for parts: the proxy keeps these until the pipeline is given others.

    Subclasses override ``run``, ``replaces``, ``answer``, ``step``, ``set_timesteps`` and ``check_part``.

    Args:
        pipeline: The pipeline; it is not touched.
        scheduler: A scheduler to use instead of the pipeline's.
    """

    def __init__(self, pipeline: Any, scheduler: Any = None):
        self._pipeline = pipeline
        self._given: dict[str, _Given] = {}
        self._shown: dict[str, _Shown] = {}
        self._seen: dict[str, Any] = {}  # what the pipeline had where the proxy has an attribute now
        self._is_running = threading.Lock()
        self._class = cls = type(pipeline)
        self.pipeline: Any = object.__new__(
            subclass(
                cls, __call__=self._call(), __getattribute__=self._read(), __setattr__=self._assign(),
                __getattr__=lambda _, name: getattr(pipeline, name),
                maybe_free_model_hooks=lambda _: pipeline.maybe_free_model_hooks(),
            )
        )  # fmt: skip
        if scheduler is not None:
            self._given["scheduler"] = _Given(scheduler, vars(pipeline).get("scheduler"))

    @property
    def _own(self) -> dict[str, Any]:
        attributes: dict[str, Any] = object.__getattribute__(self.pipeline, "__dict__")
        return attributes

    # What a subclass decides

    def run(self, own_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answers a call of the proxy pipeline; ``own_call`` is the pipeline's ``__call__``."""
        return own_call(self.pipeline, *args, **kwargs)

    def replaces(self, name: str, part: Any) -> bool:
        """Whether ``answer`` answers the calls of a module, or ``step`` those of a scheduler."""
        raise NotImplementedError

    def answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Answers a call of a module."""
        raise NotImplementedError

    def step(self, scheduler: Any, own_step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answers a call of ``scheduler.step``."""
        raise NotImplementedError

    def set_timesteps(
        self, scheduler: Any, own_schedule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answers a call of ``scheduler.set_timesteps``."""
        return own_schedule(*args, **kwargs)

    def check_part(self, name: str, value: Any, present: Any) -> None:
        """Refuses a part that the proxy pipeline is given, in a subclass that does not take every part."""

    # Attributes

    def _read(self) -> Callable[[Any, str], Any]:
        own_read: Any = self._class.__getattribute__
        theirs = vars(self._pipeline)

        def read(proxy: Any, name: str) -> Any:
            if name in self._given or (name in theirs and name not in self._own):
                return self._show(name)
            return own_read(proxy, name)

        return read

    def _show(self, name: str) -> Any:
        theirs = vars(self._pipeline)
        given = self._given.get(name)
        if given and name in theirs and given.instead_of is not theirs[name] and not self._is_running.locked():
            del self._given[name]
            given = None
        part = given.part if given else theirs[name]
        is_module = isinstance(part, torch.nn.Module)
        if not (is_module or is_scheduler(part)) or not self.replaces(name, part):
            return part
        shown, look = self._shown.get(name), type(part) if is_module else _read_settings(part)
        if shown and not is_module and self._is_running.locked():
            return shown.stand_in  # a loop has one scheduler
        if shown is None or shown.part is not part or shown.look != look:
            if not is_module and is_stand_in(part):
                stand_in = part
            else:
                self._refuse_stand_in(name, part)
                stand_in = self._replace(name, part)
            self._shown[name] = shown = _Shown(part, look, stand_in)
        return shown.stand_in

    def _replace(self, name: str, part: Any) -> Any:
        if isinstance(part, torch.nn.Module):
            return imitate(part, functools.partial(self.answer, name, part))
        return count(part, step=self.step, set_timesteps=self.set_timesteps)

    def _assign(self) -> Callable[[Any, str, Any], None]:
        own_assign: Any = self._class.__setattr__
        theirs = vars(self._pipeline)

        def assign(proxy: Any, name: str, value: Any) -> None:
            present = self._given[name].part if name in self._given else theirs.get(name)
            if self._is_part(name, value, present):
                if name in theirs and value is self._show(name):
                    return
                self.check_part(name, value, present)
                self._given[name] = _Given(value, theirs.get(name))
                self._shown.pop(name, None)
            elif self._is_running.locked():
                self._seen[name] = theirs.get(name, _NOTHING)
                own_assign(proxy, name, value)
            else:
                self._own.pop(name, None)
                setattr(self._pipeline, name, value)

        return assign

    def _is_part(self, name: str, value: Any, present: Any) -> bool:
        if any(isinstance(part, torch.nn.Module) or is_scheduler(part) for part in (value, present)):
            return True
        return name in getattr(self._pipeline, "config", {}) and not name.startswith("_")

    def _refuse_stand_in(self, name: str, part: Any) -> None:
        if is_stand_in(part):
            raise ZeusError(
                f"{name}: got a part of an accelerated pipeline; expected one of a plain pipeline. Give the pipeline "
                "the module itself."
            )

    # Runs

    @contextmanager
    def running(self) -> Iterator[None]:
        """Marks the block as a run: attributes that it assigns are the proxy's.

        Raises:
            ZeusError: The proxy runs already.
        """
        self._settle()
        if not self._is_running.acquire(blocking=False):
            raise ZeusError(
                f"pipeline: got a call of an accelerated {self._class.__name__} that is running; expected one at "
                "a time. Accelerate the pipeline once for each thread."
            )
        try:
            yield
        finally:
            self._is_running.release()

    def _call(self) -> Callable[..., Any]:
        own_call: Any = self._class.__call__

        @functools.wraps(own_call)
        def call(proxy: Any, *args: Any, **kwargs: Any) -> Any:
            return self.run(own_call, *args, **kwargs)

        return call

    def _settle(self) -> None:
        """Reads the pipeline anew: what it was given since is not hidden by what the proxy has."""
        if self._is_running.locked():
            return
        theirs = vars(self._pipeline)
        for name, seen in self._seen.items():
            if theirs.get(name, _NOTHING) is not seen:
                self._own.pop(name, None)
        for name in {*theirs, *self._given}:
            self._show(name)


def _read_settings(scheduler: Any) -> tuple[Any, ...]:
    """What a user may set on a scheduler between runs: its config, and numbers such as the shift of its sigmas."""
    attributes = vars(scheduler)
    numbers = {name: value for name, value in attributes.items() if isinstance(value, float)}
    return id(attributes.get("_internal_dict")), numbers
