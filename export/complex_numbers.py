"""Complex numbers of an exported program as pairs of real tensors: ONNX and engines have real ones only."""

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node
from torch.fx.node import map_arg

from zeus_trt.errors import ZeusError
from zeus_trt.export.complex_rules import PLACES, RULES, Pair
from zeus_trt.export.guards import find_line

aten = torch.ops.aten
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def make_real(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with a pair of real tensors for each complex one, such as those of rotary embeddings.

    Args:
        program: Its inputs and its output are real; constants and buffers may be complex. Not changed.

    Returns:
        A program of the same inputs; the program itself where all of it is real.

    Raises:
        ZeusError: An operator on complex numbers that has no rule, by its name and line of the model; or a complex
            input or output.
    """
    if not any(map(_is_complex, program.graph.nodes)):
        return program
    program = program.run_decompositions({})  # without operators that write into their arguments
    rewriter = _Rewriter(program)
    for node in [*program.graph.nodes]:
        rewriter.rewrite(node)
    rewriter.finish()
    return program


class _Rewriter:
    """Replaces the complex nodes of a program, one by one."""

    def __init__(self, program: torch.export.ExportedProgram):
        self._graph, self._module = program.graph, program.graph_module
        self._fake: Any = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
        self._stores = (program.state_dict, program.constants)
        self._targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
        self._pairs: dict[Node, Pair] = {}

    def rewrite(self, node: Node) -> None:
        """Writes the real form of a node beside it, if it has to do with complex numbers."""
        if not _is_complex(node) and not any(argument in self._pairs for argument in node.all_input_nodes):
            return
        if node.op == "output" or (node.op == "placeholder" and node.name not in self._targets):
            raise ZeusError(
                f"denoiser: got a complex {'output' if node.op == 'output' else f'input, {node.name}'}; expected real "
                "tensors. Return, or pass, its parts."
            )
        if node.op == "placeholder":
            self._pairs[node] = self._split(node)
            return
        with self._graph.inserting_before(node):
            result = self._compute(node)
        if not isinstance(result, Pair):
            node.replace_all_uses_with(result)
        self._pairs[node] = result if isinstance(result, Pair) else Pair(result)

    def finish(self) -> None:
        """Drops the complex nodes."""
        for node in reversed(self._pairs):
            if node.op != "placeholder":
                self._graph.erase_node(node)
        for node in self._graph.find_nodes(op="call_function", target=aten.view.default):
            node.target = aten.reshape.default  # parts have other strides, and so has what is computed of them
        self._graph.lint()
        self._module.recompile()

    def _split(self, node: Node) -> Pair:
        """The parts of a constant, which becomes a real one with a last axis of 2."""
        target = self._targets[node.name]
        for store in self._stores:
            if target in store:
                store[target] = torch.view_as_real(store[target].resolve_conj()).clone()
        node.meta["val"] = torch.view_as_real(node.meta["val"])
        first = next(other for other in self._graph.nodes if other.op != "placeholder")
        with self._graph.inserting_before(first):
            return Pair(*(self._write(node, aten.select.int, node, -1, place) for place in (0, 1)))

    def _compute(self, node: Node) -> Any:
        """The parts of an operator's result, or a real result."""
        packet = getattr(node.target, "overloadpacket", node.target)
        if packet is aten._assert_tensor_metadata:
            return Pair(None)
        if packet in RULES:

            def write(target: Any, *args: Any) -> Node:
                return self._write(node, target, *args)

            return RULES[packet](write, *map(self._to_pair, node.args))
        if packet in PLACES:
            return self._act_on_parts(node, PLACES[packet])
        raise ZeusError(
            f"onnx: got {node.target} on complex numbers at {find_line(node) or node.name}; expected an operator that "
            "has a form in real ones. Write it with cosines and sines in the model's code, or report the model."
        )

    def _act_on_parts(self, node: Node, places: tuple[int, ...]) -> Any:
        parts = []
        for part in ("real", "imaginary") if _is_complex(node) else ("real",):
            args = (
                self._take(node, value, part) if place in places else value for place, value in enumerate(node.args)
            )
            parts.append(self._write(node, node.target, *args, **node.kwargs))
        return Pair(*parts) if len(parts) == 2 else parts[0]

    def _take(self, node: Node, value: Any, part: str) -> Any:
        """One part of an argument, or of each in a list of them."""
        if isinstance(value, list | tuple) and any(isinstance(each, Node) for each in value):
            return [self._take(node, each, part) for each in value]
        taken = getattr(self._to_pair(value), part)
        if taken is None:
            is_tensor = isinstance(value, Node) and isinstance(value.meta["val"], torch.Tensor)
            return self._write(node, aten.zeros_like.default, value) if is_tensor else 0
        return taken

    def _to_pair(self, value: Any) -> Pair:
        if isinstance(value, complex):
            return Pair(value.real, value.imag)
        return self._pairs[value] if isinstance(value, Node) and value in self._pairs else Pair(value)

    def _write(self, source: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A node that comes from the same place of the model as ``source``."""
        target = aten.reshape.default if target is aten.view.default else target  # parts are not contiguous
        args = tuple(map(_make_dtype_real, args))
        written = self._graph.call_function(target, args, {name: _make_dtype_real(v) for name, v in kwargs.items()})
        values, named = map_arg((written.args, written.kwargs), lambda node: node.meta["val"])
        with self._fake:
            written.meta = {**source.meta, "val": target(*values, **named)}
        return written


def _make_dtype_real(value: Any) -> Any:
    return _REAL.get(value, value) if isinstance(value, torch.dtype) else value


def _is_complex(node: Node) -> bool:
    values = node.meta.get("val")
    values = values if isinstance(values, list | tuple) else [values]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
