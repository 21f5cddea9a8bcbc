"""Recording what a pipeline passes to its denoiser."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.imitation import Imitation
from zeus_trt.export.twin import unwrap
from zeus_trt.runtime.pipelines.arguments import bind


@dataclass(frozen=True)
class Call:
    """One call of the denoiser.

    Args:
        arguments: What was passed, by the name in the ``forward`` signature; tensors are copies.
        step: Calls of ``scheduler.step`` before it: the index of the step it belongs to.
        branch: Calls before it in the same step, such as 1 for the second branch of guidance.
        output_shape: Shape of the first tensor that the denoiser returns.
        time: The timestep that ``scheduler.step`` received in this step; None if the pipeline did not reach it.
    """

    arguments: Mapping[str, Any]
    step: int
    branch: int
    output_shape: tuple[int, ...]
    time: float | None = None


class Enough(BaseException):  # no Exception: a pipeline must not catch it
    """Ends the pipeline when enough steps are recorded."""


@contextmanager
def record_calls(
    pipeline: Any, component: str, steps: int = 3, imitation: Imitation | None = None
) -> Iterator[list[Call]]:
    """Records the calls of a denoiser while the block runs the pipeline.

    The denoiser is not run: noise of the right shape and dtype is its answer. Once it was called in ``steps`` steps
    the pipeline ends, and the block with it. Afterwards the pipeline, its scheduler, its modules and the random state
    of the CPU are what they were, whatever happened in the block.

    Args:
        pipeline: A diffusers pipeline, with its components on any device.
        component: Name of the denoiser among the pipeline's components; the others run as ever.
        steps: How many steps to record.
        imitation: One that answered for this denoiser before, to spare its start.

    Yields:
        The calls so far.

    Raises:
        ZeusError: The pipeline has no such denoiser, or did not call it.
    """
    denoiser = find_denoiser(pipeline, component)
    recorder = _Recorder(pipeline, denoiser, steps, imitation or Imitation(denoiser))
    attributes, own_class = dict(vars(pipeline)), type(denoiser)
    cut = False
    try:
        with torch.random.fork_rng(devices=[]):
            # The class, not `forward`: accelerate's hooks replace that before and after a run.
            denoiser.__class__ = subclass(own_class, __call__=recorder.replace_call(own_class.__call__))
            # Past __setattr__, which writes the pipeline's config.
            vars(pipeline)["scheduler"] = recorder.count_steps(pipeline.scheduler)
            vars(pipeline)["_progress_bar_config"] = {"disable": True}
            yield recorder.calls
    except Enough:
        cut = True
    finally:
        denoiser.__class__ = own_class
        vars(pipeline).clear()
        vars(pipeline).update(attributes)
    if cut and hasattr(pipeline, "maybe_free_model_hooks"):
        pipeline.maybe_free_model_hooks()  # a pipeline's own last act
    if not recorder.calls:
        raise ZeusError(
            f"component: got {component}, which the pipeline did not call; expected its denoiser. "
            "Name another one, or run enough steps to reach it."
        )


def find_denoiser(pipeline: Any, component: str) -> torch.nn.Module:
    """The pipeline's component of that name.

    Raises:
        ZeusError: The component is missing or not a module, or the pipeline has no scheduler.
    """
    check_single(pipeline)
    parts = pipeline.components
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    if component not in modules:
        raise ZeusError(
            f"component: got {component}; expected one of {', '.join(sorted(modules))}, the modules of this "
            f"{type(pipeline).__name__}. Choose its denoiser."
        )
    return modules[component]


def check_single(pipeline: Any) -> None:
    """Refuses anything but a diffusers pipeline with one loop.

    Raises:
        ZeusError: It has no scheduler, or is made of other pipelines.
    """
    from diffusers import DiffusionPipeline

    attributes = vars(pipeline) if hasattr(pipeline, "__dict__") else {}
    if parts := sorted(name for name, part in attributes.items() if isinstance(part, DiffusionPipeline)):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__}, which is made of the pipelines {' and '.join(parts)}; "
            f"expected a pipeline with one loop. Export one of them, such as pipeline.{parts[0]}."
        )
    components = getattr(pipeline, "components", None)
    if not isinstance(components, dict) or components.get("scheduler") is None:
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__}; expected a diffusers pipeline with a scheduler. "
            "Load one with DiffusionPipeline.from_pretrained()."
        )


class _Recorder:
    """The calls so far, and the step that the pipeline is at."""

    def __init__(self, pipeline: Any, denoiser: torch.nn.Module, steps: int, imitation: Imitation):
        self.calls: list[Call] = []
        self._pipeline, self._wanted, self._imitation = pipeline, steps, imitation
        self._signature = inspect.signature(type(unwrap(denoiser)).forward)
        self._step = self._branch = 0

    def replace_call(self, original: Callable) -> Callable:
        """The denoiser's ``__call__`` while it is recorded."""

        def call(module, *args, **kwargs):
            if find_pipeline() not in (None, self._pipeline):  # another one that shares the module
                return original(module, *args, **kwargs)
            arguments = bind(self._signature, module, *args, **kwargs)
            copies = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), arguments)
            answer = self._imitation(arguments)
            shape = next(tuple(leaf.shape) for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor))
            self.calls.append(Call(copies, self._step, self._branch, shape))
            self._branch += 1
            return answer

        return call

    def count_steps(self, scheduler: Any) -> Any:
        """A copy of the scheduler that reports its steps; copies of the copy do too."""
        own_step = type(scheduler).step
        signature = inspect.signature(own_step)

        @functools.wraps(own_step)  # pipelines read its signature
        def step(scheduler, *args, **kwargs):
            told = torch.as_tensor(signature.bind(scheduler, *args, **kwargs).arguments.get("timestep", ()))
            time = float(told) if told.numel() == 1 else None
            result = own_step(scheduler, *args, **kwargs)
            self.calls[:] = [replace(call, time=time) if call.step == self._step else call for call in self.calls]
            self._step, self._branch = self._step + 1, 0
            if len({call.step for call in self.calls}) >= self._wanted:
                raise Enough
            return result

        counting = copy.deepcopy(scheduler)
        counting.__class__ = subclass(type(scheduler), step=step)
        return counting


def subclass(base: type, **methods: Callable) -> type:
    """A class that a pipeline takes for ``base``."""
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__, "__qualname__": base.__qualname__})


def find_pipeline() -> Any:
    """The diffusers pipeline that is calling, the innermost if one runs another; None if it is some other code."""
    from diffusers import DiffusionPipeline

    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), DiffusionPipeline):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None
