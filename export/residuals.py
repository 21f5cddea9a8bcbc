"""Inputs of a denoiser that another network makes at every step, such as the residuals of a ControlNet."""

from collections.abc import Collection
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.recorder import STEPS, Recorder, list_modules
from zeus_trt.export.runs import Run, Settings, equal, say_failure
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.runtime.pipelines.arguments import flatten


def find_residuals(pipeline: Any, component: str, settings: Settings) -> dict[str, list[str]]:
    """The inputs of a denoiser that networks beside it make, by the network that makes them.

    The pipeline is run once to see which networks it calls after its first step, and once for each of these with other
    answers of it: what is different in the first call of the denoiser comes from there.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        component: The denoiser's name.
        settings: How to run the pipeline.

    Raises:
        ZeusError: The pipeline refuses the settings.
    """
    plain = _record(pipeline, component, settings)
    first = flatten(plain.calls[0].arguments)
    found: dict[str, list[str]] = {}
    for name in plain.beside:
        other = flatten(_record(pipeline, component, settings, {name}).calls[0].arguments)
        found[name] = [leaf for leaf in first.tensors if not equal(first.leaves[leaf], other.leaves[leaf])]
    return found


def find_moving(
    pipeline: Any, settings: Settings, component: str, run: Run
) -> tuple[tuple[str, str], dict[str, list[str]], list[str]]:
    """Names of the latents, the timestep, and what else changes with the step.

    Returns:
        Latents and timestep; the inputs that networks make, by network; further times, such as the end of the interval
        that a mean velocity is of.

    Raises:
        ZeusError: Fewer than two inputs change, or more that are no times and that no other network makes; or latents
            that are integers.
    """
    by_rank = sorted(run.changing, key=lambda name: -run.arguments.leaves[name].ndim)
    if by_rank and not run.arguments.leaves[by_rank[0]].is_floating_point():
        raise ZeusError(
            f"denoiser: got {by_rank[0]}, integers such as tokens, changing with the step; expected latents of "
            "floating-point numbers, which solvers step. Run this pipeline without an engine."
        )
    beside: dict[str, list[str]] = {}
    if len(by_rank) > 2:
        found = find_residuals(pipeline, component, settings)
        beside = {network: names for network, names in found.items() if names}
        by_rank = [name for name in by_rank if not any(name in names for names in beside.values())]
    times = [name for name in by_rank[1:] if len(by_rank) == 2 or run.arguments.leaves[name].ndim < 3]
    if times and len(times) == len(by_rank) - 1:
        timestep = min(times, key=lambda name: (run.scales[name] is None, name != "timestep"))
        return (by_rank[0], timestep), beside, [name for name in times if name != timestep]
    if len(by_rank) < 2:
        raise ZeusError(
            f"denoiser: got {by_rank[0] if by_rank else 'nothing'} changing with the step; expected latents and a "
            "timestep. Run the pipeline with three steps or more."
        )
    names = ", ".join(by_rank[:3]) + (f" and {len(by_rank) - 3} more" if len(by_rank) > 3 else "")
    raise ZeusError(
        f"denoiser: got {names} changing with the step; expected latents and times, beside what other networks make "
        "at each step. Export the pipeline without what changes them."
    )


def _record(pipeline: Any, component: str, settings: Settings, disturbed: Collection[str] = ()) -> "_BesideRecorder":
    recorder = _BesideRecorder(pipeline, component, disturbed)
    with say_failure(settings.base):
        recorder.record(lambda proxy: settings.run(proxy, **settings.base), seed=0)
    return recorder


class _BesideRecorder(Recorder):
    """Records a denoiser's calls, and which networks are called after the first step.

    Args:
        pipeline: The pipeline.
        component: Name of the denoiser.
        disturbed: Networks whose answers are other ones.
    """

    def __init__(self, pipeline: Any, component: str, disturbed: Collection[str]):
        self._component, self._disturbed = component, disturbed
        self.beside: list[str] = []
        super().__init__(pipeline, component, STEPS, ShapeProbe(list_modules(pipeline)[component]))
        self._parts = list_modules(pipeline)

    def answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the networks beside the denoiser, and answers for the denoiser."""
        if name == self._component:
            return super().answer(name, module, *args, **kwargs)
        if self._step and name not in self.beside:
            self.beside.append(name)
        answer = module(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda own: own + 1, answer) if name in self._disturbed else answer
