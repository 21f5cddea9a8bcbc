"""Any diffusers pipeline, with most of its denoiser calls skipped, in two lines."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.pipelines.accelerated_proxy import AcceleratedProxy
from zeus_trt.runtime.pipelines.denoisers import check_single, find_denoisers, list_parts
from zeus_trt.runtime.pipelines.run import PipelineRun
from zeus_trt.runtime.pipelines.stand_in import is_scheduler, is_stand_in
from zeus_trt.runtime.request import check_threshold, expect
from zeus_trt.runtime.session import Session
from zeus_trt.runtime.steppers import Step
from zeus_trt.zeus_graph import Plan, Predictor, choose_plan

__all__ = ["accelerate", "find_denoisers"]


def accelerate(
    pipeline: Any,
    ratio: int | None = None,
    *,
    plan: Plan | str | Path | Callable[[int], Plan] | None = None,
    window: str | tuple[float, float] | None = None,
    preset: str | None = None,
    predictor: str | Predictor | None = None,
    scheduler: Any = None,
    engine: Session | str | Path | Bundle | None = None,
    check: bool = True,
    drift_threshold: float | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_call: Callable[[], None] | None = None,
) -> AbstractContextManager[Any]:
    """Gives a pipeline that skips denoiser calls, to be used in the place of the given one.

    It is a proxy over the same modules: called with the same arguments, at any number of steps, it makes the same
    picture but for what skipping costs; with ratio 0 the same to the bit. The given pipeline, its scheduler and its
    modules are not touched. The proxy reads the pipeline's parts when it is used: another module, adapters or offload
    that the pipeline is given later take effect, and so do methods of the proxy such as ``load_lora_weights`` on the
    pipeline. Proxies of one pipeline may run in several threads, each proxy in one at a time.

    Args:
        pipeline: A diffusers pipeline.
        ratio: Skipped steps after each full one; 3 by default.
        plan: What happens at each evaluation, instead of ``ratio``: for runs of just that many; or what makes it for a
            number of evaluations. ``plan``, ``window`` and ``preset`` are as in ``choose_plan``.
        predictor: The rule that fills skipped steps; by default the plan's, else ``zeus``.
        scheduler: A diffusers scheduler to use instead of the pipeline's.
        engine: A session of a bundle of this pipeline, or the bundle: its engine is called instead of the denoiser.
        check: Compare the engine's first output with the denoiser's own, which costs a call of it; and again in the
            first run after a change of the denoiser. Adapters are compared by name in any case.
        drift_threshold: As in ``Session.generate``: the report holds the drift, and a larger one makes a step full.
        on_step: Called with every step as it is done.
        on_call: Called after every call of the denoiser.

    Returns:
        A ``with`` block of the proxy. After a run the proxy's ``report`` says what the run did, and its ``schedule``
        what ``set_timesteps`` was given.

    Raises:
        ZeusError: No pipeline with a scheduler and a denoiser, one that is made of whole pipelines, another argument
            than these, or a bundle of another pipeline. The proxy raises it where a run does not work in steps of a
            denoiser and ``scheduler.step``, and where an engine does not agree with the denoiser.
    """
    parts = list_parts(pipeline)
    if any(is_stand_in(part) for part in (pipeline, scheduler, *parts.values())):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} that is accelerated already, or has parts that are; expected "
            "what it was made of. Accelerate that."
        )
    check_single(pipeline)
    has_modules = any(isinstance(part, torch.nn.Module) for part in parts.values())
    if not has_modules or not any(map(is_scheduler, parts.values())):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} with {', '.join(parts) or 'no components'}; "
            "expected a diffusers pipeline with a scheduler and a denoiser. Accelerate a pipeline that has them."
        )
    expect("predictor", predictor, (str, Predictor, type(None)), "a name or a Predictor")
    expect("engine", engine, (Session, str, Path, Bundle, type(None)), "a bundle or a Session")
    check_threshold(drift_threshold)
    if scheduler is not None and not is_scheduler(scheduler):
        raise ZeusError(f"scheduler: got {scheduler!r}; expected a diffusers scheduler. Make one of its config.")
    planner = choose_plan(plan, ratio, window, preset, predictor)
    begin = functools.partial(PipelineRun, planner, predictor, on_step, on_call, drift_threshold)
    return _Block(AcceleratedProxy(pipeline, scheduler, begin), engine, check)


class _Block(AbstractContextManager):
    """The ``with`` block of a proxy; closes the session that it opens."""

    def __init__(self, proxy: AcceleratedProxy, engine: Session | str | Path | Bundle | None, check: bool):
        self._proxy, self._engine, self._check = proxy, engine, check
        self._opened = ExitStack()

    def __enter__(self) -> Any:
        engine = self._engine
        if engine is not None:
            with ExitStack() as opened:
                session = engine if isinstance(engine, Session) else opened.enter_context(Session(engine))
                self._proxy.use(session, self._check)
                self._opened = opened.pop_all()
        return self._proxy.pipeline

    def __exit__(self, *error: Any) -> None:
        self._opened.close()
