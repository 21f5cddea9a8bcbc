"""What a graph's inputs are: their dtypes, axes and roles, read off the calls of several runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.axes import Slot
from zeus_trt.export.border import CONSTANT, Axes, Border
from zeus_trt.export.runs import Run, equal
from zeus_trt.runtime.bundle.tensor_spec import DTYPES, TensorSpec, name_dtype

LATENTS, TIMESTEP, CONDITIONING, SIZE, FIXED = "latents", "timestep", "conditioning", "size", "fixed"


def describe_inputs(
    runs: Sequence[Run],
    content: Run | None,
    moving: Mapping[str, str],
    slots: Mapping[Slot, str],
    residuals: Collection[str] = (),
) -> tuple[TensorSpec, ...]:
    """The inputs, those of ``moving`` first, with their roles; ``residuals`` are conditioning."""
    first = runs[0].arguments
    found: list[TensorSpec] = []
    for name in (*moving, *(name for name in first.leaves if name not in moving)):
        leaf = first.leaves[name]
        if (name, None) in slots:
            found.append(TensorSpec(name, "int64", (), SIZE, slots[name, None]))
        elif isinstance(leaf, torch.Tensor):
            axes = name_axes(name, leaf.shape, slots)
            role = moving.get(name) or (CONDITIONING if name in residuals else "")
            role = role or _find_role(name, runs, content, set(axes) - set(found[0].axes[:1]))
            found.append(TensorSpec(name, _choose_dtype(name, leaf, role), axes, role))
    found[1] = replace(found[1], axes=(*found[0].axes[:1], *found[1].axes[1:]))
    return tuple(found)


def _choose_dtype(name: str, leaf: torch.Tensor, role: str) -> str:
    """The dtype of a graph's input: every number with a point is float32."""
    if role == TIMESTEP or leaf.is_floating_point():
        return "float32"
    if (dtype := name_dtype(leaf)) not in DTYPES:
        raise ZeusError(
            f"{name}: got {dtype} in the call of the denoiser; expected one of {', '.join(DTYPES)}, which graphs take. "
            "Run the pipeline without it."
        )
    return dtype


def cross(inputs: Sequence[TensorSpec], border: Border, axes: Axes, latents: torch.Tensor) -> tuple[TensorSpec, ...]:
    """The inputs of the denoiser as those of the graph."""
    if (place := border.constant_axis) is None:
        return tuple(inputs)
    stays = (*axes.latents[:place], latents.shape[place] - border.size, *axes.latents[place + 1 :])
    constant = TensorSpec(border.constant, inputs[0].dtype, stays, CONSTANT)
    return replace(inputs[0], axes=axes.state), inputs[1], constant, *inputs[2:]


def _find_role(name: str, runs: Sequence[Run], content: Run | None, other_axes: set[int | str]) -> str:
    leaf = runs[0].arguments.leaves[name]
    if content is None or not equal(leaf, content.arguments.leaves[name]):
        return CONDITIONING
    moves = any(isinstance(axis, str) for axis in other_axes)
    first_rows = [torch.atleast_1d(run.arguments.leaves[name])[:1] for run in runs]
    return SIZE if moves or any(not equal(row, first_rows[0]) for row in first_rows) else FIXED


def name_axes(name: str, shape: Sequence[int], slots: Mapping[Slot, str]) -> tuple[int | str, ...]:
    return tuple(slots.get((name, axis), size) for axis, size in enumerate(shape))
