"""The captured denoiser as a function of flat tensors, and that function as an ONNX graph."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.adapters import fuse_adapters
from zeus_trt.export.branches import Branches, describe_branches, find_origin, note_answers
from zeus_trt.export.capture import Capture
from zeus_trt.export.graph import quiet, write_graph
from zeus_trt.export.guards import FixedSizes, Sizes
from zeus_trt.export.limits import list_sizes, read_rules, tie_sizes
from zeus_trt.export.open_sizes import keep_sizes_open
from zeus_trt.export.parameters import map_parameters, write_parameters
from zeus_trt.export.selections import Selections
from zeus_trt.export.shallow_copy import shallow_copy
from zeus_trt.runtime.bundle.branch import Branch
from zeus_trt.runtime.bundle.size_rules import SizeRules


class Untraceable(ZeusError):
    """The denoiser's code fixes a size that moved, or torch cannot trace it."""


class FlatDenoiser(torch.nn.Module):
    """The denoiser as a function of positional values, in the order of ``captured.inputs``, that returns one tensor.

    It takes the solver's latents and timestep, and calls a shallow copy of the user's module, in eval mode, with the
    captured constants.

    Args:
        captured: What was captured.
        branches: Answers the branches of the denoiser's code; NaN is returned where an input asks for another answer.
        note: Called with the sizes of each call, each under its symbol.
    """

    def __init__(
        self, captured: Capture, branches: Branches | None = None, note: Callable[[Sizes], None] = lambda sizes: None
    ):
        super().__init__()
        self.denoiser = shallow_copy(captured.denoiser).eval()
        self._captured, self._branches, self._note = captured, branches or Branches(), note

    def forward(self, *values: torch.Tensor | int) -> torch.Tensor:
        self._note(list_sizes(self._captured, values))
        tie_sizes(self._captured, values)
        self._branches.begin()
        return self._branches.poison(self._captured.leave(self.denoiser(**self._captured.nest(values))))


def export_capture(captured: Capture, path: Path) -> tuple[SizeRules, tuple[Branch, ...]]:
    """Writes ``path``, its weights ``path.data``, and which of them holds which parameter: ``parameters.json``.

    Every axis that moved is dynamic, and named by its symbol.

    The user's module is not touched: what is exported is a shallow copy of it.

    Args:
        captured: What ``capture`` found.
        path: Where the graph goes. Its inputs have the names and order of ``captured.inputs``; an integer is an int64
            of shape (). The output is ``model_output``.

    Returns:
        What the graph asks of its sizes, and the branches of the model's code on values.

    Raises:
        ZeusError: The model's code fixes a size that moved, or asks of the sizes what no manifest can hold.
    """
    program, branches = _trace(captured)
    names = [spec.name for spec in captured.inputs]
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = write_graph(program, names, [*(spec.axes for spec in captured.inputs), captured.output_axes], path)
    write_parameters(map_parameters(program, graph, "denoiser."), path.with_name("parameters.json"))
    return read_rules(captured, program), branches


def trace_flat(captured: Capture) -> torch.export.ExportedProgram:
    """The flat denoiser, its adapters fused, as an exported program with dynamic axes.

    Raises:
        Untraceable: The model's code fixes a size that moved, or branches on what changes with the step.
    """
    return _trace(captured)[0]


def _trace(captured: Capture) -> tuple[torch.export.ExportedProgram, tuple[Branch, ...]]:
    branches = Branches([])
    try:
        program = _try_trace(captured, branches)
    except Untraceable:
        if not branches.is_missing:
            raise
        branches = Branches(note_answers(FlatDenoiser(captured), captured.examples))
        program = _try_trace(captured, branches)
    return program, describe_branches(program, [spec.name for spec in captured.inputs], branches.answers)


def _try_trace(captured: Capture, branches: Branches) -> torch.export.ExportedProgram:
    dynamic = torch.export.Dim.DYNAMIC  # a named Dim would be specialised in silence where the model fixes it
    shapes = tuple(
        dynamic if spec.value else {axis: dynamic for axis, size in enumerate(spec.axes) if isinstance(size, str)}
        for spec in captured.inputs
    )
    fixed_sizes = FixedSizes()
    try:
        with torch.no_grad(), quiet():
            adapted = replace(captured, denoiser=fuse_adapters(captured.denoiser))
            flat = FlatDenoiser(adapted, branches, fixed_sizes.note)
            with keep_sizes_open(flat.denoiser), Selections(), fixed_sizes, branches:
                return torch.export.export(flat, captured.examples, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch and the model's own code each raise theirs
        kind = type(captured.denoiser).__name__
        if fixed := _list_fixed(captured, error, fixed_sizes):
            raise Untraceable(
                f"denoiser: got {kind}, whose code fixes {' and '.join(fixed)}; expected code that computes with "
                "tensors and their sizes alone. Capture it with settings that do not vary that, or change the model's "
                "code."
            ) from error
        where = f" at {origin}" if (origin := find_origin(error)) else ""
        raise Untraceable(
            f"denoiser: got {kind}, which torch cannot trace{where}{_name_open(captured, error)} "
            f"({_say(error)}); expected code that computes with tensors and their sizes alone. Vary fewer settings, or "
            "report the model."
        ) from error


def _list_fixed(captured: Capture, error: Exception, sizes: FixedSizes) -> list[str]:
    """The symbols that a model's code makes constants of, each with its value, as torch's words say, and its line."""
    words = r"You marked L\['values'\]\[(\d+)\](?:\.size\(\)\[(\d+)\])? as dynamic but .* constant \((-?\d+)\)"
    found = re.findall(words, str(error))
    names = [(_name_slot(captured, place, axis), size) for place, axis, size in found]
    return sorted({f"{name} at {size}{sizes.find_line(name)}" for name, size in names if name})


def _name_open(captured: Capture, error: Exception) -> str:
    """The symbols that torch names in its own words, or all of them; nothing if no size varies."""
    found = re.findall(r"L\['values'\]\[(\d+)\](?:\.size\(\)\[(\d+)\])?", str(error))
    names = {name for place, axis in found if (name := _name_slot(captured, place, axis))}
    joined = " and ".join(sorted(names) or [symbol.name for symbol in captured.symbols])
    return f" with {joined} left open" if joined else ""


def _name_slot(captured: Capture, place: str, axis: str) -> str | None:
    """The symbol of an input's axis, or of its value; None if there is no such input."""
    if int(place) >= len(captured.inputs):
        return None
    spec = captured.inputs[int(place)]
    return str(spec.axes[int(axis)] if axis else spec.value or spec.name)


def _say(error: Exception) -> str:
    """The first line of what an exception says, or its kind."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
