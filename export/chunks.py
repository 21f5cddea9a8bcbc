"""Parts of a tensor along an axis that varies, as slices: ONNX's form of them is a sequence, which engines lack."""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def slice_chunks(program: torch.export.ExportedProgram) -> None:
    """Replaces ``chunk`` and ``split`` into parts whose size is symbolic, in place.

    Args:
        program: As traced, or decomposed.
    """
    for node in [*program.graph.nodes]:
        if node.target in (aten.chunk.default, aten.split.Tensor):
            whole, count, axis = (*node.args, 0)[:3]
            if isinstance(whole.meta["val"].shape[axis], torch.SymInt):
                _slice(program.graph, node, count, axis)
    program.graph.lint()
    program.graph_module.recompile()


def _slice(graph: Graph, node: Node, count: Any, axis: int) -> None:
    """Each part of ``node`` as a slice of its tensor."""
    whole: Any = node.args[0]
    size = count
    with graph.inserting_before(node):
        if node.target is aten.chunk.default:
            length = write_call(graph, aten.sym_size.int, whole, axis)
            size = write_call(graph, operator.floordiv, write_call(graph, operator.add, length, count - 1), count)
        for part in [*node.users]:
            place: Any = part.args[1]
            start, end = (write_call(graph, operator.mul, size, factor) for factor in (place, place + 1))
            part.replace_all_uses_with(write_call(graph, aten.slice.Tensor, whole, axis, start, end))
            graph.erase_node(part)
    graph.erase_node(node)


def write_call(graph: Graph, target: Any, *arguments: Any) -> Any:
    """A node with its value; numbers stay numbers."""
    if all(isinstance(argument, int) for argument in arguments):
        return target(*arguments)
    node = graph.call_function(target, arguments)
    values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in arguments]
    node.meta["val"] = target(*values)
    return node
