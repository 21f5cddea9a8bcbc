"""Quotients of sizes that may be below zero, such as ``-(-length // 2)``: ONNX's integer division cuts towards zero."""

import operator

import torch

from zeus_trt.export.chunks import write_call


def round_down(program: torch.export.ExportedProgram) -> None:
    """Writes ``a // b`` of sizes as ``(a - a % b) // b`` where ``a`` may be below zero, in place.

    Args:
        program: As traced, or decomposed.
    """
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=operator.floordiv):
        above, below = node.args
        if not _may_be_negative(above):
            continue
        with graph.inserting_before(node):
            rest = write_call(graph, operator.mod, above, below)
            node.args = (write_call(graph, operator.sub, above, rest), below)
    graph.lint()
    program.graph_module.recompile()


def _may_be_negative(size: object) -> bool:
    value = size.meta["val"] if isinstance(size, torch.fx.Node) else size
    if isinstance(value, torch.SymInt):
        return bool(value.node.shape_env.bound_sympy(value.node.expr).lower < 0)
    return not isinstance(value, int) or value < 0
