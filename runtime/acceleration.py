"""Any diffusers pipeline, with most of its denoiser calls skipped, in two lines."""

import copy
import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.arguments import bind
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.engine_call import CheckedCall, EngineCall
from zeus_trt.runtime.loop import Step
from zeus_trt.runtime.pipeline_run import PipelineRun, count_evaluations
from zeus_trt.runtime.report import Report
from zeus_trt.runtime.request import check_threshold, expect
from zeus_trt.runtime.session import Session
from zeus_trt.zeus_graph import Predictor, StepPlan, choose_predictor

DENOISERS = ("unet", "transformer", "transformer_2", "unconditional_transformer", "controlnet")
"""Components of a pipeline that are not run at skipped steps."""
_MARK = "_is_accelerated"


def accelerate(
    pipeline: Any,
    ratio: int | None = None,
    *,
    plan: StepPlan | Callable[[int], StepPlan] | None = None,
    predictor: str | Predictor | None = None,
    scheduler: Any = None,
    engine: Session | str | Path | Bundle | None = None,
    check: bool = True,
    drift_threshold: float | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_call: Callable[[], None] | None = None,
) -> AbstractContextManager[Any]:
    """Gives a pipeline that skips denoiser calls, to be used in the place of the given one.

    It is a twin over the same modules: called with the same arguments, at any number of steps, it makes the same
    picture but for what skipping costs; with ratio 0 the same to the bit. The given pipeline, its scheduler and its
    modules are not touched. Twins of one pipeline may run in several threads, each twin in one at a time.

    Args:
        pipeline: A diffusers pipeline.
        ratio: Skipped steps after each full one; 3 by default.
        plan: What happens at each evaluation, instead of ``ratio``: for runs of just that many; or what makes it for a
            number of evaluations.
        predictor: The rule that fills skipped steps; by default the plan's, else ``zeus``.
        scheduler: A diffusers scheduler to use instead of the pipeline's.
        engine: A session of a bundle of this pipeline, or the bundle: its engine is called instead of the denoiser.
        check: Compare the engine's first output with the denoiser's own, which costs a call of it.
        drift_threshold: As in ``Session.generate``: the report tells the drift, and a larger one makes a step full.
        on_step: Told every step as it is done.
        on_call: Called after every call of the denoiser.

    Returns:
        A ``with`` block of the twin. After a run the twin's ``report`` says what the run did, and its ``schedule`` what
        ``set_timesteps`` was given.

    Raises:
        ZeusError: No pipeline with a scheduler and a denoiser, another argument than these, or a bundle of another
            pipeline. The twin raises it where a run does not work in steps of a denoiser and ``scheduler.step``.
    """
    if any(hasattr(part, _MARK) for part in (pipeline, scheduler, *_parts(pipeline).values())):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} that is accelerated already, or has parts that are; expected "
            "what it was made of. Accelerate that."
        )
    names = find_denoisers(pipeline)
    if not names or _parts(pipeline).get("scheduler") is None:
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} with {', '.join(_parts(pipeline)) or 'no components'}; "
            f"expected a diffusers pipeline with a scheduler and one of {', '.join(DENOISERS)}. "
            "Accelerate a pipeline that has them."
        )
    expect("predictor", predictor, (str, Predictor, type(None)), "a name or a Predictor")
    expect("engine", engine, (Session, str, Path, Bundle, type(None)), "a bundle or a Session")
    check_threshold(drift_threshold)
    if scheduler is not None and (isinstance(scheduler, type | str) or not hasattr(scheduler, "step")):
        raise ZeusError(f"scheduler: got {scheduler!r}; expected a diffusers scheduler. Make one of its config.")
    choose_plan = _choose(plan, ratio, predictor)
    acceleration = _Acceleration(
        pipeline,
        scheduler or pipeline.scheduler,
        lambda: PipelineRun(choose_plan, predictor, on_step, on_call, drift_threshold, "transformer_2" in names),
    )
    for name in names:
        acceleration.replace(name)
    return _Block(acceleration, engine, check)


class _Block(AbstractContextManager):
    """The ``with`` block of a twin; closes the session that it opens."""

    def __init__(self, acceleration: "_Acceleration", engine: Session | str | Path | Bundle | None, check: bool):
        self._acceleration, self._engine, self._check = acceleration, engine, check
        self._opened = ExitStack()

    def __enter__(self) -> Any:
        engine = self._engine
        if engine is not None:
            with ExitStack() as opened:
                session = engine if isinstance(engine, Session) else opened.enter_context(Session(engine))
                self._acceleration.use(session, self._check)
                self._opened = opened.pop_all()
        return self._acceleration.twin

    def __exit__(self, *error: Any) -> None:
        self._opened.close()


def _choose(
    plan: StepPlan | Callable[[int], StepPlan] | None, ratio: int | None, predictor: str | Predictor | None
) -> Callable[[int], StepPlan]:
    """What makes the plan for a number of evaluations; a wrong ratio or predictor is refused now."""
    if plan is None:
        skipped = 3 if ratio is None else ratio
        choose_predictor(StepPlan.uniform(1, skipped), predictor)
        return lambda total: StepPlan.uniform(total, skipped)
    if ratio is not None:
        raise ZeusError(
            f"ratio: got {ratio} beside a plan, which says what happens at each step; expected one of the two. Leave "
            "one out."
        )
    choose_predictor(plan if isinstance(plan, StepPlan) else StepPlan("F"), predictor)
    if not isinstance(plan, StepPlan) and not callable(plan):
        raise ZeusError(f"plan: got {plan!r}; expected a StepPlan, or what makes one for a number of evaluations.")
    return plan.check_length if isinstance(plan, StepPlan) else plan


def find_denoisers(pipeline: Any) -> dict[str, torch.nn.Module]:
    """The components of a pipeline that are not run at skipped steps, by name."""
    parts = _parts(pipeline)
    return {name: parts[name] for name in DENOISERS if isinstance(parts.get(name), torch.nn.Module)}


def _parts(pipeline: Any) -> dict[str, Any]:
    parts = getattr(pipeline, "components", None)
    return parts if isinstance(parts, dict) else {}


class _Acceleration:
    """A pipeline's twin, and the run that it is at."""

    def __init__(self, pipeline: Any, scheduler: Any, begin: Callable[[], PipelineRun]):
        self._begin, self._run = begin, begin()
        self._pipeline = pipeline
        self._denoisers: dict[str, Callable[..., Any]] = {}
        self._backend = "eager"
        self._running = threading.Lock()
        cls = type(pipeline)
        self.twin = _imitate(
            pipeline, __call__=self._call_pipeline(cls), maybe_free_model_hooks=self._free_hooks,
            __setattr__=self._assign(cls), **{_MARK: True},
        )  # fmt: skip
        # Past __setattr__, which writes the pipeline's config.
        vars(self.twin)["scheduler"] = self._count_steps(scheduler)

    def replace(self, name: str) -> None:
        """Puts a twin of a denoiser into the pipeline's: the pipeline reads it, and calls this run."""
        module = getattr(self._pipeline, name)
        self._denoisers[name] = module

        def call(twin: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run.call(name, self._denoisers[name], *args, **kwargs)

        vars(self.twin)[name] = _imitate(module, __call__=call, **{_MARK: True})

    def use(self, session: Session, check: bool) -> None:
        """Has an engine answer in the place of a denoiser.

        Raises:
            ZeusError: The pipeline has no such denoiser, or another one.
        """
        manifest = session.bundle.manifest
        name = manifest.component
        if name not in self._denoisers:
            raise ZeusError(
                f"engine: got a bundle of a {name}; expected one of {', '.join(self._denoisers)}, the denoisers of "
                f"this {type(self._pipeline).__name__}. Give the bundle of this pipeline."
            )
        module = getattr(self._pipeline, name)
        call = EngineCall(session.engine, manifest, type(getattr(module, "_orig_mod", module)))
        self._denoisers[name] = CheckedCall(call, module) if check else call
        self._backend = getattr(session.engine, "backend", type(session.engine).__name__)

    def _call_pipeline(self, cls: type) -> Callable[..., Any]:
        own_call: Any = cls.__call__

        @functools.wraps(own_call)
        def call(twin: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._running.acquire(blocking=False):
                raise ZeusError(
                    f"pipeline: got a call of an accelerated {cls.__name__} that is running; expected one at a time. "
                    "Accelerate the pipeline once for each thread."
                )
            self._run = run = self._begin()
            for name in ("report", "schedule"):  # of the run before
                vars(twin).pop(name, None)
            try:
                result = own_call(twin, *args, **kwargs)
            finally:
                self._run = self._begin()  # what is called outside of a run is not skipped
                self._running.release()
            if not run.steps:
                raise ZeusError(
                    f"pipeline: got a run of {cls.__name__} without a step of its denoiser and its scheduler; expected "
                    "some. It cannot be accelerated as a whole: accelerate the part that holds them."
                )
            vars(twin)["report"] = self._report(run)
            return result

        return call

    def _free_hooks(self) -> None:
        """A pipeline's own last act, which renews hooks on its modules: on the given pipeline's."""
        self._pipeline.maybe_free_model_hooks()

    def _assign(self, cls: type) -> Callable[..., None]:
        own_assign: Any = cls.__setattr__

        def assign(twin: Any, name: str, value: Any) -> None:
            is_new = name in ("scheduler", *self._denoisers) and value is not vars(twin)[name]
            if is_new and name == "scheduler" and not hasattr(value, _MARK):
                value = self._count_steps(value)
            elif is_new:
                raise ZeusError(
                    f"{name}: got another one for a pipeline that is accelerated; expected it before. Give it to the "
                    "pipeline itself, then accelerate that."
                )
            own_assign(twin, name, value)

        return assign

    def _count_steps(self, scheduler: Any) -> Any:
        own_step = type(scheduler).step
        own_schedule = type(scheduler).set_timesteps
        signature = inspect.signature(own_step)

        @functools.wraps(own_step)  # pipelines read its signature
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = bind(signature, scheduler, *args, **kwargs)

            def count() -> int:
                return count_evaluations(scheduler, arguments["timestep"], vars(self.twin).get("_num_timesteps"))

            return self._run.step(scheduler, count, functools.partial(own_step, scheduler), arguments)

        @functools.wraps(own_schedule)
        def set_timesteps(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            vars(self.twin)["schedule"] = bind(inspect.signature(own_schedule), scheduler, *args, **kwargs)
            self._run.restart()
            vars(self.twin).pop("_num_timesteps", None)  # that of the loop before; a pipeline tells its own later
            return own_schedule(scheduler, *args, **kwargs)

        counting = copy.deepcopy(scheduler)
        counting.__class__ = _subclass(type(scheduler), step=step, set_timesteps=set_timesteps, **{_MARK: True})
        return counting

    def _report(self, run: PipelineRun) -> Report:
        return Report(
            backend=self._backend,
            mode="step",
            mode_reason="the pipeline's own loop",
            plan=run.steps,
            predictor=str(run.rule),
            nfe=run.nfe,
            engine_calls=run.calls,
            drift=tuple((step, float(drift)) for step, drift in run.drift),
            engine_seconds=run.engine_seconds,
            total_seconds=run.total_seconds,
            speedup_bound=len(run.steps) / run.nfe,
        )


def _imitate(thing: Any, **methods: Any) -> Any:
    """An object with the attributes of ``thing``, not copied, and methods of its own."""
    twin: Any = object.__new__(_subclass(type(thing), **methods))
    vars(twin).update(vars(thing))
    return twin


def _subclass(base: type, **methods: Any) -> type:
    """A class that a pipeline does not tell from ``base``; ``from_pipe`` does, which asks for the very class."""
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__, "__qualname__": base.__qualname__})
