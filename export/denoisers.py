"""Finding a pipeline's denoiser by what it does: its output reaches the solver's step."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.imitation import Imitation
from zeus_trt.export.recorder import Enough, find_pipeline, subclass
from zeus_trt.export.twin import unwrap
from zeus_trt.runtime.pipelines.arguments import bind

STEPS = 3


def choose_denoiser(pipeline: Any, run: Callable[[], Any]) -> str:
    """The name of the component whose output the pipeline passes to ``scheduler.step``.

    The pipeline is run for three steps. The components that it calls between ``set_timesteps`` and the last step are
    imitated, so that the run costs no call of a network. Where it calls several, each of them is run again with
    another answer: one that changes nothing of what the solver is given, such as a ControlNet, is no denoiser.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        run: Calls it.

    Raises:
        ZeusError: No denoiser was called, or several of them.
        Exception: What the pipeline raises.
    """
    watched = watch(pipeline, run)
    denoisers = watched.called
    if len(denoisers) > 1:
        denoisers = [name for name in watched.called if watched.differs(watch(pipeline, run, disturbed=name))]
    if len(denoisers) == 1:
        return denoisers[0]
    if denoisers:
        raise ZeusError(
            f"component: got a {type(pipeline).__name__} with several denoisers; expected one of "
            f"{', '.join(denoisers)}. Name it."
        )
    others = f" (it called {', '.join(watched.called)})" if watched.called else ""
    raise ZeusError(
        f"pipeline: got a {type(pipeline).__name__}, whose solver steps on the output of none of its components"
        f"{others}; expected a pipeline that calls a denoiser, then scheduler.step. Export another pipeline."
    )


def watch(pipeline: Any, run: Callable[[], Any], disturbed: str | None = None) -> "Watch":
    """Runs a pipeline for a few steps, and notes which components it calls in its loop.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards, and so is the random state of the CPU.
        run: Calls it.
        disturbed: A component whose answers are other ones.

    Raises:
        Exception: What the pipeline raises.
    """
    watched = Watch(pipeline, disturbed)
    with torch.random.fork_rng(devices=[]), watched.installed():
        torch.manual_seed(0)
        with suppress(Enough):
            run()
    return watched


class Watch:
    """What a pipeline calls in its loop, and passes to its solver.

    Args:
        pipeline: The pipeline.
        disturbed: A component whose answers are other ones.
    """

    def __init__(self, pipeline: Any, disturbed: str | None = None):
        self._pipeline, self._disturbed = pipeline, disturbed
        self.called: list[str] = []
        self.outputs: list[Any] = []
        self._in_loop = False

    def differs(self, other: "Watch") -> bool:
        """Whether the solver was given something else in another run."""
        pairs = list(zip(self.outputs, other.outputs, strict=False))
        return any(one.shape != two.shape or not torch.equal(one, two) for one, two in pairs)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watches within the block."""
        pipeline = self._pipeline
        attributes = dict(vars(pipeline))
        parts = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
        with ExitStack() as undo:
            undo.callback(vars(pipeline).update, attributes)
            undo.callback(vars(pipeline).clear)
            for name, part in parts.items():
                own_class = type(part)
                undo.callback(setattr, part, "__class__", own_class)
                part.__class__ = subclass(own_class, __call__=self._replace_call(name, part, own_class.__call__))
            vars(pipeline)["scheduler"] = self._count_steps(pipeline.scheduler)
            vars(pipeline)["_progress_bar_config"] = {"disable": True}
            yield

    def _replace_call(self, name: str, part: torch.nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(type(unwrap(part)).forward)
        imitations: list[Imitation] = []

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_loop or find_pipeline() not in (None, self._pipeline):
                return original(module, *args, **kwargs)
            if name not in self.called:
                self.called.append(name)
            if not imitations:
                imitations.append(Imitation(part, seed=1 if name == self._disturbed else 0))
            return imitations[0](bind(signature, module, *args, **kwargs))

        return call

    def _count_steps(self, scheduler: Any) -> Any:
        own_step, own_schedule = type(scheduler).step, type(scheduler).set_timesteps
        signature = inspect.signature(own_step)

        @functools.wraps(own_step)  # pipelines read its signature
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            passed: Mapping[str, Any] = signature.bind(scheduler, *args, **kwargs).arguments
            leaves = pytree.tree_leaves(passed.get("model_output"))
            self.outputs += [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
            result = own_step(scheduler, *args, **kwargs)
            self._steps += 1
            if self._steps >= STEPS:
                raise Enough
            return result

        @functools.wraps(own_schedule)
        def set_timesteps(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self._in_loop, self._steps = True, 0
            return own_schedule(scheduler, *args, **kwargs)

        self._steps = 0
        counting = copy.deepcopy(scheduler)
        counting.__class__ = subclass(type(scheduler), step=step, set_timesteps=set_timesteps)
        return counting
