"""Running a pipeline at one setting, and comparing what several runs passed to its denoiser."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.axes import Slot
from zeus_trt.export.recorder import Call, list_modules, record_calls
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.export.timestep import find_timestep_scale
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME
from zeus_trt.runtime.pipelines.answers import list_tensors
from zeus_trt.runtime.pipelines.arguments import Arguments, flatten
from zeus_trt.runtime.pipelines.rows import Rows, count_rows, has_tensor
from zeus_trt.runtime.pipelines.side_effects import find_readers


def run_pipeline(pipeline: Any, **arguments: Any) -> Any:
    """Calls a pipeline with arguments of its ``__call__``; three steps by default."""
    return pipeline(**{"num_inference_steps": 3, **arguments})


@dataclass(frozen=True)
class Settings:
    """How to run a pipeline, and what to vary.

    Args:
        base: Keyword arguments of the first run: two images or more, height and width that differ.
        varied: One other value of each argument that moves a size. Its name becomes that of the size's symbol.
        content: Arguments that change the content and no size, such as another prompt of the same length; they tell
            conditioning from tensors that follow from the size alone.
        run: Called with the pipeline and these arguments.
        uneven: Arguments that make the prompts of a call differ in length, for pipelines that pass a mask only then.
    """

    base: Mapping[str, Any]
    varied: Mapping[str, Any]
    content: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] = run_pipeline
    uneven: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network beside the denoiser, which the denoiser reads: all that it answers counts.

    Args:
        takes_numbers: Whether floating-point numbers among its arguments are inputs, such as the scale of a ControlNet.
    """

    takes_numbers: bool = True


@dataclass(frozen=True)
class Run:
    """What one run passed to the denoiser.

    Args:
        arguments: Of the first call.
        outputs: Shapes of the first call's outputs, by name.
        changing: The leaves that change from one step to the next: name -> shape of the leading part that does.
        scales: Of each of those what the solver's timesteps are multiplied with to get it; None if it is no multiple.
        calls_per_step: 2 where each branch of guidance is a separate call.
        given: What was passed in the first call, by name: ``arguments`` may be one row of it.
    """

    arguments: Arguments
    outputs: Mapping[str, tuple[int, ...]]
    changing: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, float | None]
    calls_per_step: int
    given: Mapping[str, Any]


def record(
    pipeline: Any,
    component: str,
    settings: Settings,
    change: Mapping[str, Any] | None = None,
    probe: ShapeProbe | None = None,
) -> list[Call]:
    """Runs the pipeline at ``settings.base`` with ``change``, a probe in the place of its denoiser.

    Raises:
        ZeusError: A setting that the pipeline refuses, or a pipeline that reads more of its networks than they answer.
    """
    setting = {**settings.base, **(change or {})}
    before = find_readers(list_modules(pipeline).values())
    try:
        with say_failure(setting):
            return record_calls(pipeline, component, lambda proxy: settings.run(proxy, **setting), probe=probe)
    except ZeusError as error:
        if find_readers(list_modules(pipeline).values()).keys() <= before.keys():
            raise
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} that reads what its networks keep of each call, such as "
            "attention maps; expected one that reads their output only. Run it without an engine."
        ) from error


def summarize(calls: Sequence[Call], rows: Rows, network: "Network | None" = None) -> Run:
    """What the calls of one run passed.

    Args:
        calls: What ``record`` returned.
        rows: What is taken of them.
        network: What to take of the calls of a network beside the denoiser; None for those of the denoiser.

    Raises:
        ZeusError: Calls that differ in their arguments or change one that is no tensor.
    """
    flat = _flatten(calls, rows, network)
    changing: dict[str, tuple[int, ...]] = {}
    for call, arguments in zip(calls, flat, strict=True):
        check_same(flat[0], arguments)
        first = flat[_find_first(calls, call)].leaves
        for name in first:
            if not equal(first[name], arguments.leaves[name]):
                changing[name] = _measure_change(name, first[name], arguments.leaves[name])
    times = [call.time for call in calls]
    scales = {name: find_timestep_scale(times, [arguments.leaves[name] for arguments in flat]) for name in changing}
    calls_per_step = sum(call.step == calls[0].step for call in calls)
    shapes = {OUTPUT_NAME: calls[0].output_shape}
    if network:
        shapes = {name: tuple(tensor.shape) for name, tensor in name_outputs(calls[0].answer).items()}
    outputs = {name: (1, *shape[1:]) if rows.is_one else shape for name, shape in shapes.items()}
    return Run(flat[0], outputs, changing, scales, calls_per_step, calls[0].arguments)


def name_outputs(answer: Any) -> dict[str, torch.Tensor]:
    """All tensors that a network answers, by the names of outputs."""
    return {f"{OUTPUT_NAME}.{place}": tensor for place, tensor in enumerate(list_tensors(answer))}


def find_rows(first: Sequence[Mapping[str, Any]]) -> Rows:
    """How the rows of a pipeline's calls are passed: what is a list in them is as long as there are rows.

    Args:
        first: The arguments of the first call of each run, at settings that differ.
    """
    lengths = {
        name: tuple(count_rows(arguments.get(name)) for arguments in first)
        for name, value in first[0].items()
        if isinstance(value, list | tuple)
    }
    lists = {name: moving for name, moving in lengths.items() if len({*moving}) > 1}
    tensors = [name for name in lists if has_tensor(first[0][name])]
    rows = Rows(frozenset(lists))
    return take_one(rows, first, lists[tensors[0]]) if tensors else rows


def take_one(rows: Rows, first: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> Rows:
    """One row of such calls.

    Args:
        rows: What is known of them.
        first: As in ``find_rows``.
        counts: The rows of each run.
    """
    flat = [flatten({name: value for name, value in each.items() if name not in rows.lists}).tensors for each in first]
    sizes = {name: tuple(leaves[name].shape[:1] for leaves in flat) for name in flat[0]}
    tensors = frozenset(name for name, found in sizes.items() if found == tuple((count,) for count in counts))
    return Rows(rows.lists, tensors, is_one=True)


def _flatten(calls: Sequence[Call], rows: Rows, network: "Network | None") -> list[Arguments]:
    """The calls, each number that changes from step to step as a tensor of shape (): a timestep."""
    flat = [rows.flatten(call.arguments) for call in calls]
    firsts = [flat[_find_first(calls, call)].leaves for call in calls]
    moving = {
        name
        for first, arguments in zip(firsts, flat, strict=True)
        for name, leaf in arguments.leaves.items()
        if type(leaf) in (int, float) and type(first.get(name)) in (int, float) and first[name] != leaf
    }
    if network and network.takes_numbers:
        moving |= {name for name, leaf in flat[0].leaves.items() if type(leaf) is float}
    return [replace(each, leaves={**each.leaves, **_to_tensors(each.leaves, moving)}) for each in flat]


def _to_tensors(leaves: Mapping[str, Any], names: Collection[str]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(float(leaves[name])) for name in names if type(leaves.get(name)) in (int, float)}


@contextmanager
def say_failure(setting: Mapping[str, Any]) -> Iterator[None]:
    """Turns what a pipeline raises in the block into one sentence.

    Args:
        setting: What it is run with.

    Raises:
        ZeusError: The block raised an exception of any kind.
    """
    try:
        yield
    except ZeusError:
        raise
    except Exception as error:  # pipelines, their parts and torch each raise their own
        verb = "refuses" if isinstance(error, ValueError) else "fails on"
        raise ZeusError(
            f"settings: got {_describe(setting)}, which the pipeline {verb} ({say_cause(error)}); expected a setting "
            "that it runs. Change the sizes, or pass the arguments that it asks for."
        ) from error


def check_same(first: Arguments, other: Arguments) -> None:
    """Refuses calls that one graph cannot serve.

    Raises:
        ZeusError: An argument is passed in one call only, or in another type.
    """
    kinds = [
        {name: type(leaf) for name, leaf in arguments.leaves.items() if leaf is not None}
        for arguments in (first, other)
    ]
    for name in sorted(kinds[0].keys() | kinds[1].keys()):
        one, two = (kind[name].__name__ if name in kind else "nothing" for kind in kinds)
        if one != two:
            raise ZeusError(
                f"{name}: got {one} in one call of the denoiser and {two} in another; expected the same arguments in "
                "every call. Run the pipeline without what changes them."
            )


def find_moving_integers(runs: Sequence[Run]) -> frozenset[str]:
    """Names of the integers that move with the setting.

    Raises:
        ZeusError: Something else that is no tensor moves.
    """
    moving = set()
    first = runs[0].arguments
    for run in runs[1:]:
        check_same(first, run.arguments)
        for name, value in first.constants.items():
            if (other := run.arguments.leaves.get(name)) == value:
                continue
            if type(value) is not int:
                raise ZeusError(
                    f"{name}: got {value!r}, then {other!r} at another setting; expected a tensor or an integer "
                    "where the value moves. Vary fewer settings."
                )
            moving.add(name)
    return frozenset(moving)


def measure(runs: Sequence[Run], integers: frozenset[str]) -> dict[Slot, list[int]]:
    """The size of every axis in every run: of the tensors, of the output, and the values of ``integers``."""
    sizes: dict[Slot, list[int]] = {}
    for name, leaf in runs[0].arguments.leaves.items():
        if isinstance(leaf, torch.Tensor):
            shapes = [run.arguments.leaves[name].shape for run in runs]
            sizes |= {(name, axis): list(moving) for axis, moving in enumerate(zip(*shapes, strict=True))}
        elif name in integers:
            sizes[name, None] = [run.arguments.leaves[name] for run in runs]
    for name in runs[0].outputs:
        shapes = [run.outputs[name] for run in runs]
        sizes |= {(name, axis): list(moving) for axis, moving in enumerate(zip(*shapes, strict=True))}
    return sizes


def equal(one: Any, other: Any) -> bool:
    """Whether two leaves are the same, to the bit."""
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _measure_change(name: str, one: Any, other: Any) -> tuple[int, ...]:
    """Shape of the leading part of a tensor that holds every change; inpainting appends channels that never do."""
    if not isinstance(one, torch.Tensor):
        raise ZeusError(
            f"{name}: got a {type(one).__name__} that changes with the step; expected a tensor. "
            "Run the pipeline without what changes it."
        )
    if one.shape != other.shape:
        raise ZeusError(
            f"{name}: got shape {tuple(one.shape)}, then {tuple(other.shape)} at another step; expected one shape. "
            "Run the pipeline without what changes it."
        )
    return tuple(int(places.max()) + 1 for places in (one != other).nonzero(as_tuple=True)) if one.ndim else ()


def _describe(setting: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in setting.items() if isinstance(value, int | float | str))
        or "its arguments"
    )


def _find_first(calls: Sequence[Call], call: Call) -> int:
    """Place of the call of the same branch in the first step."""
    return next(place for place, other in enumerate(calls) if other.branch == call.branch)
