"""Networks beside a denoiser, such as a ControlNet: what they are given, and all that they answer as one output."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.axes import Slot
from zeus_trt.export.denoisers import list_denoisers
from zeus_trt.export.residuals import find_moving
from zeus_trt.export.runs import Network, Run, Settings, say_failure
from zeus_trt.runtime.bundle.layout import PACKED, Layout
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

_ADVICE = "Export the denoiser: the network then runs in torch."


def is_beside(pipeline: Any, component: str, settings: Settings, answer: Any) -> bool:
    """Whether a component is no denoiser, but a network that one reads.

    Args:
        pipeline: The pipeline.
        component: Its name.
        settings: How to run the pipeline.
        answer: What it answered.
    """
    leaves = pytree.tree_leaves(answer)
    if len(leaves) == 1 and isinstance(answer[0], torch.Tensor):  # as denoisers do
        return False
    with say_failure(settings.base):
        return component not in list_denoisers(pipeline, lambda proxy: settings.run(proxy, **settings.base))[0]


def find_together(run: Run, answer: Any) -> tuple[str, ...]:
    """The latents of a denoiser that answers a prediction for each, such as pictures and sound; empty for one.

    Some of them may stay as they are: a pipeline may keep the sound of a video that it changes.

    Args:
        run: The base run.
        answer: What the denoiser answered in it.
    """
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]
    sizes = {name: run.changing.get(name, tuple(tensor.shape)) for name, tensor in run.arguments.tensors.items()}
    names = tuple(name for name, size in sizes.items() if size in shapes)
    return names if len(names) > 1 and [sizes[name] for name in names] == shapes else ()


def say_unsteppable(
    network: Network | None, beside: Sequence[str], others: Sequence[str] = (), together: Sequence[str] = ()
) -> str:
    """Why no solver can step a network, or a denoiser that reads others at each step; empty for any other denoiser."""
    if together:
        return f"it denoises {' and '.join(together)} in one call, and each has a solver"
    if network:
        return "it makes inputs of a denoiser, and no prediction"
    if beside:
        return f"it reads what {' and '.join(beside)} makes at each step"
    return f"it reads {' and '.join(others)} at each step" if others else ""


def find_moving_inputs(
    pipeline: Any, settings: Settings, component: str, run: Run, network: Network | None
) -> tuple[tuple[str, str], Sequence[str], tuple[str, ...]]:
    """Names of the latents and the timestep, of other inputs that may change, and of networks that make these.

    Raises:
        ZeusError: As ``find_moving`` of a denoiser, and for a network that reads no timestep.
    """
    if network:
        return *_find_inputs(run), ()
    names, beside, times = find_moving(pipeline, settings, component, run)
    return names, [name for made in beside.values() for name in made] + times, tuple(beside)


def _find_inputs(run: Run) -> tuple[tuple[str, str], list[str]]:
    """Names of the latents and the timestep of a network, and of what else changes with the step or is a number."""
    tensors = run.arguments.tensors
    moving = sorted(run.changing, key=lambda name: -tensors[name].ndim)
    times = [name for name in moving[1:] if run.scales[name] is not None] or moving[1:]  # Z-Image's is 1 - t / 1000
    if not times:
        raise ZeusError(
            f"network: got {', '.join(moving) or 'nothing'} changing with the step; expected latents and a timestep. "
            f"{_ADVICE}"
        )
    names = moving[0], times[0]
    numbers = [name for name, value in tensors.items() if not value.ndim and value.is_floating_point()]
    return names, [name for name in (*moving, *numbers) if name not in names]


def find_layout(
    run: Run, answer: Any, inputs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec], slots: Mapping[Slot, str]
) -> Layout:
    """The layout of what a network answers.

    Args:
        run: The base run.
        answer: What the network answered in it.
        inputs: Of its graph, the latents first.
        symbols: The sizes that vary.
        slots: The symbol of every axis that does.

    Raises:
        ZeusError: A tensor whose first axis is another than that of the latents, one whose sizes follow from no sizes
            of the inputs, or an answer that holds more than tensors.
    """
    known = {axis for spec in inputs for axis in (*spec.axes, spec.value) if isinstance(axis, str)}
    known |= {symbol.name for symbol in symbols if symbol.factors and known.issuperset(symbol.factors)}
    tensors = []
    for name, shape in run.outputs.items():
        axes = tuple(slots.get((name, axis), size) for axis, size in enumerate(shape))
        if len(axes) < 2 or axes[0] != inputs[0].axes[0]:
            raise ZeusError(
                f"{name}: got a tensor of axes {axes} in a network's answer; expected rows like those of its latents, "
                f"{inputs[0].axes[0]}. {_ADVICE}"
            )
        if unknown := [axis for axis in axes if isinstance(axis, str) and axis not in known]:
            raise ZeusError(
                f"{name}: got a size {unknown[0]} in a network's answer that is in no proportion to the sizes of its "
                "inputs; expected one that is. Export at multiples of 64 pixels, or the denoiser alone."
            )
        tensors.append(TensorSpec(name, "float32", axes, "output"))
    return Layout(tuple(tensors), _nest(answer, iter(range(len(tensors)))))


def find_packed(runs: Sequence[Run]) -> tuple[SymbolSpec]:
    """The size of the output's second axis: the numbers of all tensors, per row."""
    counts = {sum(prod(shape[1:]) for shape in run.outputs.values()) for run in runs}
    return (SymbolSpec(PACKED, tuple(sorted(counts))),)


def _nest(answer: Any, places: Iterator[int]) -> Any:
    if answer is None or isinstance(answer, torch.Tensor):
        return None if answer is None else next(places)
    if isinstance(answer, Mapping):
        return {str(key): _nest(part, places) for key, part in answer.items()}
    if isinstance(answer, list | tuple):
        return [_nest(part, places) for part in answer]
    raise ZeusError(f"network: got a {type(answer).__name__} in its answer; expected tensors alone. {_ADVICE}")
