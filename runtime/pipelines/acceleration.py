"""Any diffusers pipeline, with most of its denoiser calls skipped, in two lines."""

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.menu import refuse_floor
from zeus_trt.runtime.pipelines.answers import list_tensors
from zeus_trt.runtime.pipelines.arguments import bind
from zeus_trt.runtime.pipelines.combined import combine, refuse_for_parts
from zeus_trt.runtime.pipelines.denoisers import (
    check_loaded,
    check_single,
    find_denoisers,
    has_scheduler,
    list_parts,
    list_pipelines,
    may_denoise,
)
from zeus_trt.runtime.pipelines.plan_choice import PlanChoice
from zeus_trt.runtime.pipelines.proxy import Proxy
from zeus_trt.runtime.pipelines.report import check_step, make_report, refuse_no_step
from zeus_trt.runtime.pipelines.run import PipelineRun
from zeus_trt.runtime.pipelines.schedule import count_evaluations
from zeus_trt.runtime.pipelines.session_calls import SessionCalls, choose_adapter
from zeus_trt.runtime.pipelines.side_effects import find_hooks
from zeus_trt.runtime.pipelines.stand_in import imitate, is_scheduler, is_stand_in
from zeus_trt.runtime.request import check_threshold, expect
from zeus_trt.runtime.session import Session
from zeus_trt.runtime.steppers import Step
from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.policy_choice import choose_policy

__all__ = ["accelerate", "find_denoisers"]


def accelerate(
    pipeline: Any,
    ratio: int | None = None,
    *,
    scheduler: Any = None,
    engine: Session | str | Path | Bundle | None = None,
    check: bool = True,
    on_step: Callable[[Step], None] | None = None,
    on_call: Callable[[], None] | None = None,
    **asked: Any,
) -> AbstractContextManager[Any]:
    """Gives a pipeline that skips denoiser calls, to be used in the place of the given one.

    It is a proxy over the same modules: called with the same arguments, at any number of steps, it makes the same
    picture but for what skipping costs; with ratio 0 the same to the bit. The given pipeline, its scheduler and its
    modules are not touched. The proxy reads the pipeline's parts when it is used: another module, adapters or offload
    that the pipeline is given later take effect, and so do methods of the proxy such as ``load_lora_weights`` on the
    pipeline. Proxies of one pipeline may run in several threads, each proxy in one at a time.
    Of a pipeline that is made of whole pipelines, each one with a scheduler is accelerated; what it calls itself runs.

    Args:
        pipeline: A diffusers pipeline.
        ratio: Skipped steps after each full one; 3 by default.
        scheduler: A diffusers scheduler to use instead of the pipeline's.
        engine: A session of a bundle of this pipeline, or the bundle: its engine is called instead of the denoiser.
        check: Compare the engine's first output and all weights with the denoiser's own, which costs a call of it and
            a second for 1.7 GB; and again in the first run after a change of it. The names and scales of adapters are
            compared in every run in any case.
        on_step: Called with every step as it is done.
        on_call: Called after every call of the denoiser.
        **asked: ``plan`` (instead of ``ratio``, for runs of just that many evaluations), ``window``, ``preset`` and
            ``predictor``, as in ``choose_plan``; ``min_psnr`` instead of these, with an engine, as in
            ``Session.generate``; ``drift_threshold`` and ``policy``, as in ``Request``; ``adapter``, the
            bundle's adapter that the engine shall have, as in ``Session``; ``adds_adapter=True`` where the pipeline has
            no adapter: the engine alone has it, and outputs are not compared.

    Returns:
        A ``with`` block of the proxy. After a run the proxy's ``report`` says what the run did, and its ``schedule``
        what ``set_timesteps`` was given.

    Raises:
        ZeusError: No pipeline with a scheduler and a denoiser, another argument than these, a scheduler or an engine
            for a pipeline that is made of whole pipelines, or a bundle of another pipeline. The proxy raises it where
            a run does not work in steps of a denoiser and ``scheduler.step``, and where an engine does not agree with
            the denoiser.
    """
    parts = list_parts(pipeline)
    if any(is_stand_in(part) for part in (pipeline, scheduler, *parts.values())):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} that is accelerated already, or has parts that are; expected "
            "what it was made of. Accelerate that."
        )
    if looped := {name: part for name, part in list_pipelines(pipeline).items() if has_scheduler(part)}:
        refuse_for_parts(pipeline, looped, scheduler=scheduler, engine=engine)
        asked |= {"ratio": ratio, "on_step": on_step, "on_call": on_call}
        return combine(pipeline, {name: accelerate(part, **asked) for name, part in looped.items()})
    check_single(pipeline, "Accelerate")
    check_loaded(pipeline)
    expect("predictor", asked.get("predictor"), (str, Predictor, Callable, type(None)), "a name or a Predictor")
    drift_threshold, policy = asked.pop("drift_threshold", None), asked.pop("policy", None)
    expect("engine", engine, (Session, str, Path, Bundle, type(None)), "a bundle or a Session")
    if (adapter := asked.pop("adapter", None)) is not None:
        engine = choose_adapter(engine, adapter)
    if (adds_adapter := asked.pop("adds_adapter", False)) and engine is None:
        raise ZeusError("adds_adapter: got it beside no engine; expected one that has an adapter. Give that as engine.")
    check_threshold(drift_threshold)
    if scheduler is not None and not is_scheduler(scheduler):
        raise ZeusError(f"scheduler: got {scheduler!r}; expected a diffusers scheduler. Make one of its config.")
    choice = PlanChoice.read(ratio=ratio, **asked)
    if asked.get("min_psnr") is not None and engine is None:
        raise refuse_floor()
    begin = functools.partial(PipelineRun, choose_policy(drift_threshold, policy, is_open=True), on_step, on_call)
    return _Block(_Accelerated(pipeline, scheduler, choice, begin, adds_adapter), engine, check)


class _Accelerated(Proxy):
    """A proxy whose calls are answered by a ``PipelineRun``.

    Args:
        pipeline: The pipeline; it is not touched.
        scheduler: A scheduler to use instead of the pipeline's.
        choice: Chooses the plan of a run.
        begin: Makes the state of a run, given the names of the denoisers and the hooks on the modules.
        adds_adapter: As in ``accelerate``.
    """

    def __init__(
        self,
        pipeline: Any,
        scheduler: Any,
        choice: PlanChoice,
        begin: Callable[[set[str], frozenset[int] | None], PipelineRun],
        adds_adapter: bool = False,
    ):
        super().__init__(pipeline, scheduler)
        self._choice, self._make_run, self._adds_adapter = choice, begin, adds_adapter
        self._called: dict[str, Any] = {}
        self._engines: SessionCalls | None = None
        self._run = self._begin()

    def use(self, session: Session, check: bool) -> SessionCalls:
        """Has engines answer in the places of networks, within the block that it returns.

        Raises:
            ZeusError: The pipeline has no such network, or another one.
        """
        self._engines = SessionCalls(self._pipeline, session, check, self._adds_adapter)
        return self._engines

    @property
    def _session(self) -> Session | None:
        return self._engines.session if self._engines else None

    def answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        letter = self._run.letter
        if letter == "Q" and self._engines is None and name in self._run.denoisers:
            raise ZeusError(
                "plan: got Q for a pipeline without an engine; expected a bundle with a quantized graph. Give it as "
                "engine, or write F."
            )
        engine = self._engines.find(name, module, letter) if self._engines else None
        return self._run.call(name, engine or module, *args, **kwargs)

    def _begin(self, hooks: frozenset[int] | None = None) -> PipelineRun:
        if self._engines:
            self._engines.expect_change()
        return self._make_run({*find_denoisers(self._pipeline)}, hooks)

    def replaces(self, name: str, part: Any) -> bool:
        """Every scheduler, and every module that may denoise."""
        return not isinstance(part, torch.nn.Module) or may_denoise(name, part)

    def check_part(self, name: str, value: Any, present: Any) -> None:
        """Refuses another denoiser, and parts of an accelerated pipeline but for copies of its scheduler.

        Raises:
            ZeusError: It is one of these.
        """
        known = {*find_denoisers(self._pipeline), *self._run.denoisers}
        is_copy = is_scheduler(value) and is_stand_in(value) and value.step.belongs_to(self.step)
        if (isinstance(present, torch.nn.Module) and name in known) or (is_stand_in(value) and not is_copy):
            raise ZeusError(
                f"{name}: got another one for a pipeline that is accelerated; expected its own. Give it to the "
                "pipeline itself: this one reads it there."
            )

    def run(self, own_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the pipeline with steps skipped, and reports on it."""
        with self.running():
            for name in ("report", "schedule"):  # of the run before
                self._own.pop(name, None)
            try:
                modules = [part for part in vars(self._pipeline).values() if isinstance(part, torch.nn.Module)]
                if self._choice.aim:
                    signature = inspect.signature(own_call)
                    defaults = {name: one.default for name, one in signature.parameters.items()}
                    self._called = defaults | bind(signature, self.pipeline, *args, **kwargs)
                self._run = run = self._begin(frozenset().union(*map(find_hooks, modules)))
                result = own_call(self.pipeline, *self._watch(own_call, args), **self._watch_named(kwargs))
                run.finish()
            finally:
                self._run = self._begin()  # what is called outside of a run is not skipped
            if not run.steps:
                raise refuse_no_step(self._class.__name__, run, "schedule" in self._own)
            self._own["report"] = make_report(run, self._session.engine if self._session else None)
            return result

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
            if self._engines:
                self._engines.expect_change()
            after = _measure(result) if isinstance(result, dict) else {}
            if any(name in after and after[name] != shapes for sizes in before for name, shapes in sizes.items()):
                self._run.expect_change()
            return result

        is_function = isinstance(callback, types.FunctionType | types.MethodType | functools.partial | type)
        if is_function or not hasattr(callback, "__dict__"):
            return call
        return imitate(callback, call)  # pipelines ask for its class

    def step(self, scheduler: Any, own_step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bind(inspect.signature(type(scheduler).step), scheduler, *args, **kwargs)
        check_step(self._class.__name__, arguments)

        def choose() -> tuple[Plan, str]:
            count = count_evaluations(scheduler, arguments["timestep"], self._own.get("_num_timesteps"))
            return self._choice.choose(count, self._session, scheduler, self._own.get("schedule", {}), self._called)

        return self._run.step(scheduler, choose, own_step, arguments)

    def set_timesteps(
        self, scheduler: Any, own_schedule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._own["schedule"] = bind(inspect.signature(type(scheduler).set_timesteps), scheduler, *args, **kwargs)
        self._run.restart()
        self._own.pop("_num_timesteps", None)  # that of the loop before; a pipeline sets its own later
        return own_schedule(*args, **kwargs)


class _Block(AbstractContextManager):
    """The ``with`` block of a proxy; closes the session that it opens."""

    def __init__(self, proxy: _Accelerated, engine: Session | str | Path | Bundle | None, check: bool):
        self._proxy, self._engine, self._check = proxy, engine, check
        self._opened = ExitStack()

    def __enter__(self) -> Any:
        engine = self._engine
        if engine is not None:
            with ExitStack() as opened:
                session = engine if isinstance(engine, Session) else opened.enter_context(Session(engine))
                opened.enter_context(self._proxy.use(session, self._check))
                self._opened = opened.pop_all()
        return self._proxy.pipeline

    def __exit__(self, *error: Any) -> None:
        self._opened.close()


def _measure(arguments: dict[str, Any]) -> dict[str, list[torch.Size]]:
    return {name: [tensor.shape for tensor in list_tensors(value)] for name, value in arguments.items()}
