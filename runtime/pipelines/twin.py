"""A pipeline's twin: it reads the pipeline's parts when it is used, and has its own scheduler and run."""

import functools
import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.pipelines.answers import list_tensors
from zeus_trt.runtime.pipelines.arguments import bind
from zeus_trt.runtime.pipelines.denoisers import find_denoisers, list_parts, may_denoise
from zeus_trt.runtime.pipelines.engine_call import CheckedCall, EngineCall
from zeus_trt.runtime.pipelines.report import make_report, refuse_no_step
from zeus_trt.runtime.pipelines.run import PipelineRun
from zeus_trt.runtime.pipelines.schedule import count_evaluations
from zeus_trt.runtime.pipelines.side_effects import find_hooks, unwrap
from zeus_trt.runtime.pipelines.stand_in import count, imitate, is_scheduler, is_stand_in, subclass
from zeus_trt.runtime.session import Session

_NOTHING = object()


@dataclass(frozen=True)
class _Given:
    """A part that the twin was given: it counts until the pipeline is given another one."""

    part: Any
    instead_of: Any


@dataclass(frozen=True)
class _Shown:
    """What the twin shows in the place of a part."""

    part: Any
    look: Any
    stand_in: Any


class Twin:
    """The state behind a twin.

    What a run assigns is the twin's own. What is assigned between runs, by methods such as
    ``enable_model_cpu_offload``, is assigned to the pipeline, but for parts: these are the twin's until the pipeline is
    given others.

    Args:
        pipeline: The pipeline; it is not touched.
        scheduler: A scheduler to use instead of the pipeline's.
        begin: Makes the state of a run, given the names of the denoisers and the hooks on the modules.
    """

    def __init__(self, pipeline: Any, scheduler: Any, begin: Callable[[set[str], frozenset[int] | None], PipelineRun]):
        self._pipeline, self._make_run = pipeline, begin
        self._given: dict[str, _Given] = {}
        self._shown: dict[str, _Shown] = {}
        self._seen: dict[str, Any] = {}  # what the pipeline had where the twin has an attribute now
        self._session: Session | None = None
        self._compares = True
        self._engine_call: CheckedCall | None = None
        self._is_running = threading.Lock()
        self._run = self._begin()
        cls = type(pipeline)
        self._class = cls
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

    def use(self, session: Session, check: bool) -> None:
        """Has an engine answer in the place of a denoiser.

        Raises:
            ZeusError: The pipeline has no such denoiser, or another one.
        """
        name = session.bundle.manifest.component
        names = find_denoisers(self._pipeline)
        module = list_parts(self._pipeline).get(name)
        if not isinstance(module, torch.nn.Module):
            raise ZeusError(
                f"engine: got a bundle of a {name}; expected one of {', '.join(names)}, the denoisers of "
                f"this {self._class.__name__}. Give the bundle of this pipeline."
            )
        self._session, self._compares = session, check
        self._engine_call = self._stand_for(module, session)

    def _stand_for(self, module: Any, session: Session) -> CheckedCall:
        pixels = getattr(self._pipeline, "vae_scale_factor", None)
        engine = EngineCall(session.engine, session.bundle.manifest, type(unwrap(module)), pixels)
        return CheckedCall(engine, module, self._compares)

    def _answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        denoiser = module
        if self._session and name == (manifest := self._session.bundle.manifest).component:
            is_same = self._engine_call and self._engine_call.module is module
            if not is_same or type(unwrap(module)).__name__ != manifest.denoiser_class:
                self._engine_call = self._stand_for(module, self._session)
            denoiser = self._engine_call
        return self._run.call(name, denoiser, *args, **kwargs)

    def _begin(self, hooks: frozenset[int] | None = None) -> PipelineRun:
        if self._engine_call:
            self._engine_call.expect_change()
        return self._make_run({*find_denoisers(self._pipeline)}, hooks)

    # Attributes

    def _read(self) -> Callable[[Any, str], Any]:
        own_read: Any = self._class.__getattribute__
        theirs = vars(self._pipeline)

        def read(twin: Any, name: str) -> Any:
            if name in self._given or (name in theirs and name not in self._own):
                return self._show(name)
            return own_read(twin, name)

        return read

    def _show(self, name: str) -> Any:
        theirs = vars(self._pipeline)
        given = self._given.get(name)
        if given and name in theirs and given.instead_of is not theirs[name] and not self._is_running.locked():
            del self._given[name]
            given = None
        part = given.part if given else theirs[name]
        is_module = isinstance(part, torch.nn.Module) and may_denoise(name, part)
        if not is_module and not is_scheduler(part):
            return part
        shown, look = self._shown.get(name), type(part) if is_module else _read_settings(part)
        if shown and not is_module and self._is_running.locked():
            return shown.stand_in  # a loop has one scheduler
        if shown is None or shown.part is not part or shown.look != look:
            if not is_module and is_stand_in(part):
                stand_in = part
            else:
                self._refuse_stand_in(name, part)
                stand_in = (
                    imitate(part, functools.partial(self._answer, name, part)) if is_module else self._count(part)
                )
            self._shown[name] = shown = _Shown(part, look, stand_in)
        return shown.stand_in

    def _assign(self) -> Callable[[Any, str, Any], None]:
        own_assign: Any = self._class.__setattr__
        theirs = vars(self._pipeline)

        def assign(twin: Any, name: str, value: Any) -> None:
            if name in theirs and value is self._show(name):
                return
            present = self._given[name].part if name in self._given else theirs.get(name)
            if self._is_part(name, value, present):
                self._refuse_denoiser(name, value, present)
                self._given[name] = _Given(value, theirs.get(name))
                self._shown.pop(name, None)
            elif self._is_running.locked():
                self._seen[name] = theirs.get(name, _NOTHING)
                own_assign(twin, name, value)
            else:
                self._own.pop(name, None)
                setattr(self._pipeline, name, value)

        return assign

    def _is_part(self, name: str, value: Any, present: Any) -> bool:
        if any(isinstance(part, torch.nn.Module) or is_scheduler(part) for part in (value, present)):
            return True
        return name in getattr(self._pipeline, "config", {}) and not name.startswith("_")

    def _refuse_denoiser(self, name: str, value: Any, present: Any) -> None:
        known = {*find_denoisers(self._pipeline), *self._run.denoisers}
        is_copy = is_scheduler(value) and is_stand_in(value) and value.step.belongs_to(self._step)
        if (isinstance(present, torch.nn.Module) and name in known) or (is_stand_in(value) and not is_copy):
            raise ZeusError(
                f"{name}: got another one for a pipeline that is accelerated; expected its own. Give it to the "
                "pipeline itself: this one reads it there."
            )

    def _refuse_stand_in(self, name: str, part: Any) -> None:
        if is_stand_in(part):
            raise ZeusError(
                f"{name}: got a part of an accelerated pipeline; expected one of a plain pipeline. Give the pipeline "
                "the module itself."
            )

    # Runs

    def _call(self) -> Callable[..., Any]:
        own_call: Any = self._class.__call__

        @functools.wraps(own_call)
        def call(twin: Any, *args: Any, **kwargs: Any) -> Any:
            self._settle()
            if not self._is_running.acquire(blocking=False):
                raise ZeusError(
                    f"pipeline: got a call of an accelerated {self._class.__name__} that is running; expected one at "
                    "a time. Accelerate the pipeline once for each thread."
                )
            for name in ("report", "schedule"):  # of the run before
                self._own.pop(name, None)
            try:
                modules = [part for part in vars(self._pipeline).values() if isinstance(part, torch.nn.Module)]
                self._run = run = self._begin(frozenset().union(*map(find_hooks, modules)))
                result = own_call(twin, *self._watch(own_call, args), **self._watch_named(kwargs))
                run.finish()
            finally:
                self._run = self._begin()  # what is called outside of a run is not skipped
                self._is_running.release()
            if not run.steps:
                raise refuse_no_step(self._class.__name__, run, "schedule" in self._own)
            self._own["report"] = make_report(run, self._session.engine if self._session else None)
            return result

        return call

    def _settle(self) -> None:
        """Reads the pipeline anew: what it was given since is not hidden by what the twin has."""
        if self._is_running.locked():
            return
        theirs = vars(self._pipeline)
        for name, seen in self._seen.items():
            if theirs.get(name, _NOTHING) is not seen:
                self._own.pop(name, None)
        for name in {*theirs, *self._given}:
            self._show(name)

    def _watch(self, own_call: Any, args: tuple[Any, ...]) -> list[Any]:
        names = [*inspect.signature(own_call).parameters][1:]
        named = self._watch_named(dict(zip(names, args, strict=False)))
        return [*named.values(), *args[len(named) :]]

    def _watch_named(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self._watch_callback(value) if name.startswith("callback") and callable(value) else value
            for name, value in arguments.items()
        }

    def _watch_callback(self, callback: Any) -> Any:
        """A callback that runs modules itself: what it calls is not skipped, and what it changes is noticed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before = [_measure(value) for value in (*args, *kwargs.values()) if isinstance(value, dict)]
            with self._run.pause():
                result = callback(*args, **kwargs)
            if self._engine_call:
                self._engine_call.expect_change()
            after = _measure(result) if isinstance(result, dict) else {}
            if any(name in after and after[name] != shapes for sizes in before for name, shapes in sizes.items()):
                self._run.expect_change()
            return result

        is_function = isinstance(callback, types.FunctionType | types.MethodType | functools.partial | type)
        if is_function or not hasattr(callback, "__dict__"):
            return call
        return imitate(callback, call)  # pipelines ask for its class

    def _count(self, scheduler: Any) -> Any:
        return count(scheduler, step=self._step, set_timesteps=self._set_timesteps)

    def _step(self, scheduler: Any, own_step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bind(inspect.signature(type(scheduler).step), scheduler, *args, **kwargs)

        def count() -> int:
            return count_evaluations(scheduler, arguments["timestep"], self._own.get("_num_timesteps"))

        return self._run.step(scheduler, count, own_step, arguments)

    def _set_timesteps(
        self, scheduler: Any, own_schedule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._own["schedule"] = bind(inspect.signature(type(scheduler).set_timesteps), scheduler, *args, **kwargs)
        self._run.restart()
        self._own.pop("_num_timesteps", None)  # that of the loop before; a pipeline sets its own later
        return own_schedule(*args, **kwargs)


def _measure(arguments: dict[str, Any]) -> dict[str, list[torch.Size]]:
    return {name: [tensor.shape for tensor in list_tensors(value)] for name, value in arguments.items()}


def _read_settings(scheduler: Any) -> tuple[Any, ...]:
    """What a user may set on a scheduler between runs: its config, and numbers such as the shift of its sigmas."""
    attributes = vars(scheduler)
    numbers = {name: value for name, value in attributes.items() if isinstance(value, float)}
    return id(attributes.get("_internal_dict")), numbers
