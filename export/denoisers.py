"""Finding a pipeline's denoiser by what it does: its output reaches the solver's step."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.recorder import STEPS, Enough, Probing, list_modules
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.runtime.pipelines.side_effects import find_readers


def choose_denoiser(pipeline: Any, run: Callable[[Any], Any]) -> str:
    """The name of the component whose output the pipeline passes to ``scheduler.step``; see ``list_denoisers``.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        run: Calls the pipeline that it is given.

    Raises:
        ZeusError: No denoiser was called, or several of them.
        Exception: What the pipeline raises.
    """
    denoisers, called = list_denoisers(pipeline, run)
    if len(denoisers) == 1:
        return denoisers[0]
    if denoisers:
        raise ZeusError(
            f"component: got a {type(pipeline).__name__} with several denoisers; expected one of "
            f"{', '.join(denoisers)}. Name it."
        )
    others = f" (it called {', '.join(called)})" if called else ""
    raise ZeusError(
        f"pipeline: got a {type(pipeline).__name__}, whose solver steps on the output of none of its components"
        f"{others}; expected a pipeline that calls a denoiser, then scheduler.step. Export another pipeline."
    )


def list_denoisers(pipeline: Any, run: Callable[[Any], Any]) -> tuple[list[str], list[str]]:
    """The components whose output reaches ``scheduler.step``, and all that the pipeline calls in its loop.

    The pipeline is run for three steps. The components that it calls between ``set_timesteps`` and the last step are
    answered with noise, so that the run costs no call of a network. Where it calls several, each of them gets another
    answer in another run: one that changes nothing of what the solver is given, such as a ControlNet, is no denoiser.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        run: Calls the pipeline that it is given.

    Raises:
        Exception: What the pipeline raises.
    """
    watched = watch(pipeline, run)
    if len(watched.called) < 2:
        return watched.called, watched.called
    found = [name for name in watched.called if watched.differs(watch(pipeline, run, disturbed=name))]
    return found, watched.called


def watch(pipeline: Any, run: Callable[[Any], Any], disturbed: str | None = None) -> "Watch":
    """Runs a pipeline for a few steps, and notes which components it calls in its loop.

    Components answer with noise. Where the pipeline fails and has given one of them other attention processors or
    hooks, it may have read these, such as attention maps: it runs again, and so do its components.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards, and so is the random state of the CPU.
        run: Calls the pipeline that it is given.
        disturbed: A component whose answers are other ones.

    Raises:
        Exception: What the pipeline raises.
    """
    modules = list_modules(pipeline).values()
    before = find_readers(modules)
    watched = Watch(pipeline, disturbed)
    try:
        watched.record(run, seed=0)
    except Exception:  # pipelines, their parts and torch each raise their own
        if find_readers(modules).keys() <= before.keys():
            raise
        watched = Watch(pipeline, disturbed, answers=False)
        watched.record(run, seed=0)
    return watched


class Watch(Probing):
    """The modules that a pipeline calls in its loop, and what it passes to its solver.

    Args:
        pipeline: The pipeline.
        disturbed: A component whose answers are other ones.
        answers: Whether components answer with noise; else all but the disturbed one run.
    """

    def __init__(self, pipeline: Any, disturbed: str | None = None, answers: bool = True):
        self._disturbed, self._answers = disturbed, answers
        self.called: list[str] = []
        self.structures: dict[str, Any] = {}
        """How the arguments of each one's first call nest, by name; of a list with an entry per row, the first one."""
        self.outputs: list[torch.Tensor] = []
        self._probes: dict[str, ShapeProbe] = {}
        self._in_loop, self._steps = False, 0
        super().__init__(pipeline, list_modules(pipeline))

    def differs(self, other: "Watch") -> bool:
        """Whether the solver was given something else in another run."""
        pairs = list(zip(self.outputs, other.outputs, strict=False))
        return any(one.shape != two.shape or not torch.equal(one, two) for one, two in pairs)

    def answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes who is called in the loop, and answers with noise; before it the module runs."""
        if not self._in_loop:
            return module(*args, **kwargs)
        if name not in self._probes:
            self.called.append(name)
            self._probes[name] = ShapeProbe(module, seed=1 if name == self._disturbed else 0)
        if not self._answers and name != self._disturbed:
            return module(*args, **kwargs)
        arguments = self.bind(module, *args, **kwargs)
        self.structures.setdefault(name, pytree.tree_structure(_take_entry(arguments)))
        return self._probes[name](arguments)

    def step(self, scheduler: Any, own_step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Steps, and notes what the solver is given; ends the run after a few steps."""
        passed = inspect.signature(own_step).bind(*args, **kwargs).arguments
        leaves = pytree.tree_leaves(passed.get("model_output"))
        self.outputs += [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        result = own_step(*args, **kwargs)
        self._steps += 1
        if self._steps >= STEPS:
            raise Enough
        return result

    def set_timesteps(
        self, scheduler: Any, own_schedule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Begins the loop."""
        self._in_loop, self._steps = True, 0
        return own_schedule(*args, **kwargs)


def _take_entry(value: Any) -> Any:
    """Arguments with the first entry of each list in its place."""
    if isinstance(value, dict):
        return {key: _take_entry(part) for key, part in value.items()}
    return value[0] if isinstance(value, list) and value else value
