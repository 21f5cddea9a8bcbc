"""The conditions on sizes that tracing met on its way."""

import ast
import functools
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode

_TORCH, _OWN = str(Path(torch.__file__).parent), str(Path(__file__).parent)
_LAYOUT = {  # functions of torch that compare sizes to choose strides or a kernel, which a graph does not have
    "check_contiguous_sizes_strides", "is_contiguous", "is_channels_last_contiguous_2d",
    "is_channels_last_contiguous_3d", "are_strides_like_channels_last", "are_strides_like_channels_last_or_false",
    "is_non_overlapping_and_dense_or_false", "compute_elementwise_output_logical_to_physical_perm",
    "_reshape_view_helper_core_alg", "_collapse_view_helper", "alias_non_inplace_storage", "__lt__", "ge", "conv",
    "_call_impl",  # a graph that runs again: it checks what is known of its sizes, with Python's branches
}  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """A condition that was true of the traced sizes, and that the graph relies on.

    Args:
        expression: Of torch's own symbols.
        origin: File and line of the model, or the name of torch's function; empty if torch does not know it.
    """

    expression: sympy.Basic
    origin: str


def list_guards(environment: Any, graph: torch.fx.Graph) -> Iterator[Guard]:
    """The guards and assertions of torch's environment of shapes.

    Those that choose a layout in memory are left out, and those that choose between two layouts in the model's code.

    Args:
        environment: The ``ShapeEnv`` of the trace.
        graph: Its graph, whose assertions know their lines.
    """
    for guard in environment.guards:
        frame = guard.sloc.framework_loc
        file, line = getattr(frame, "filename", ""), getattr(frame, "lineno", 0)
        is_torch = file.startswith(_TORCH)
        expression = guard.expr
        if is_torch and (frame.name in _LAYOUT or _compares_strides(expression)):
            continue
        if not is_torch and changes_nothing(file, line):
            continue
        yield Guard(expression, _name_origin(frame))
    for asserts in environment.deferred_runtime_asserts.values():
        for condition in asserts:
            yield Guard(condition.expr, _find_assertion(graph, str(condition.expr)))


def find_line(node: torch.fx.Node) -> str:
    """File and line of the model that a node of a graph comes from; empty if torch does not know it."""
    lines = re.findall(r'File "([^"]+)", line (\d+), in', node.meta.get("stack_trace") or "")
    return f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""


Sizes = Iterable[tuple[str, Any]]
"""Sizes, each under its symbol, once per axis that has it."""


class FixedSizes(TorchFunctionMode):
    """Knows, while a model is traced, which of its lines make numbers of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: list[tuple[str, Any]] = []
        self._lines: list[str] = []  # of each guard: the line whose call of torch was the next to end

    def note(self, sizes: Sizes) -> None:
        """Takes the sizes of a call."""
        self._sizes = [(name, size) for name, size in sizes if isinstance(size, torch.SymInt)]

    def find_line(self, name: str) -> str:
        """Where a symbol first was one number: `` (model.py:12)``; empty if it never was."""
        symbols = {size.node._expr for other, size in self._sizes if other == name}
        for place, guard in enumerate(self._list_guards()):
            found = guard.expr.free_symbols
            if isinstance(guard.expr, sympy.Eq) and len(found) == 1 and found <= symbols:
                origin = _name_origin(guard.sloc.framework_loc)
                is_known = origin.endswith(" of torch") and self._lines[place : place + 1] > [""]
                return f" ({self._lines[place] if is_known else origin})"
        return ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if count := len(self._list_guards()) - len(self._lines):
                self._lines += [_find_last(traceback.extract_stack())] * count

    def _list_guards(self) -> Sequence[Any]:
        return self._sizes[0][1].node.shape_env.guards if self._sizes else ()


def _find_last(frames: traceback.StackSummary) -> str:
    """File and line of the last frame that is of a model; empty if none is."""
    lines = [frame for frame in frames if not frame.filename.startswith((_TORCH, _OWN, "<"))]
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""


def _name_origin(frame: Any) -> str:
    """File and line of the model, or the name of torch's function."""
    if not (file := getattr(frame, "filename", "")):
        return ""
    return f"{frame.name} of torch" if file.startswith(_TORCH) else f"{Path(file).name}:{frame.lineno}"


def _find_assertion(graph: torch.fx.Graph, expression: str) -> str:
    nodes = (node for node in graph.nodes if any(expression in str(argument) for argument in node.args[1:]))
    return next((line for node in nodes if (line := find_line(node))), "")


def _compares_strides(expression: sympy.Basic) -> bool:
    """Torch looks whether a size is 1 to broadcast it; every other inequality of torch itself compares strides."""
    return isinstance(expression, sympy.Ne) and not {sympy.S.One, sympy.S.Zero} & {*expression.args}


@functools.lru_cache(maxsize=1000)
def changes_nothing(file: str, line: int) -> bool:
    """Whether the ``if`` at a line of Python only changes a layout in memory, or writes to a log."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and node.test.lineno <= line <= (node.test.end_lineno or line)
    ]
    return bool(found) and all(
        not node.orelse and all(_is_layout(part) or _is_log(part) for part in node.body) for node in found
    )


def _is_layout(node: ast.stmt) -> bool:
    """``x = x.contiguous()``"""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "contiguous"
        and ast.dump(function.value).replace("Load()", "") == ast.dump(node.targets[0]).replace("Store()", "")
    )


def _is_log(node: ast.stmt) -> bool:
    """``logger.info(...)`` or ``warnings.warn(...)``"""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("logger", "logging", "warnings")
    )
