"""Tables of numbers that a program makes of nothing, such as the frequencies of a timestep, computed once by torch."""

from collections.abc import Collection
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg

_CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)
_MOST_NUMBERS = 1 << 16


def compute_tables(program: torch.export.ExportedProgram) -> None:
    """Makes constants of floating-point tables, and of the QR decompositions of weights, in place.

    ONNX's tools fold them as well, with other roundings: sines of a frequency times 1000 show the last bit of it.

    Args:
        program: As traced, without complex numbers.
    """
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.linalg_qr.default):
        known = _compute(program, {InputKind.CONSTANT_TENSOR, InputKind.PARAMETER, InputKind.BUFFER})
        if known.keys() >= {*node.all_input_nodes}:  # ONNX has no form of it
            parts = node.target(*map_arg(node.args, known.__getitem__))
            for part in [*node.users]:
                _store(program, part, parts[part.args[1]].contiguous())
    known = _compute(program, {InputKind.CONSTANT_TENSOR})
    for node, value in known.items():
        if node.op == "placeholder":
            continue
        users = [user for user in node.users if user not in known and user.target not in _CHECKS]
        if users and value.numel() <= _MOST_NUMBERS and value.is_floating_point():
            _store(program, node, value.contiguous())
    program.graph_module.recompile()


def _compute(program: torch.export.ExportedProgram, kinds: Collection[InputKind]) -> dict[Node, torch.Tensor]:
    """The tensors that depend on no input but those of some kinds, nor on a size, and are not written into."""
    written, stored = _list_written(program), {**program.state_dict, **program.constants}
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.kind in kinds}
    known: dict[Node, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node in written:
            continue
        if node.op == "placeholder" and node.name in targets:
            known[node] = stored[targets[node.name]].detach()
        elif isinstance(node.target, torch._ops.OpOverload) and known.keys() >= {*node.all_input_nodes}:
            if not isinstance(node.meta.get("val"), torch.Tensor) or _is_special(node.target):
                continue
            args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*args, **kwargs)
    return known


def _is_special(target: torch._ops.OpOverload) -> bool:
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _list_written(program: torch.export.ExportedProgram) -> set[Node]:
    """The nodes that operators write into, and those that these may be views of."""
    below = [
        node.args[0]
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    ]
    found: set[Any] = set()
    while below:
        if isinstance(node := below.pop(), Node) and node not in found:
            found.add(node)
            below += node.all_input_nodes if _may_share(node.target) else []
    return found


def _may_share(target: Any) -> bool:
    """Whether an operator's result may be a view of what it takes: torch has others say so in their schema."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    is_composite = target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return is_composite or any(result.alias_info for result in target._schema.returns)


def _store(program: torch.export.ExportedProgram, node: Node, value: torch.Tensor) -> None:
    fake: Any = detect_fake_mode([node.meta["val"]])
    with program.graph.inserting_before(next(iter(program.graph.nodes))):
        table = program.graph.placeholder(f"table_{node.name}")
    table.meta = {**node.meta, "val": fake.from_tensor(value, static_shapes=True)}
    node.replace_all_uses_with(table)
    argument = TensorArgument(table.name)
    program.graph_signature.input_specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, argument, table.name))
    program.constants[table.name] = value
