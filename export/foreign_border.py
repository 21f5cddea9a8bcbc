"""The graph of a bundle around one that others exported: the solver's border outside, theirs inside."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.foreign_wiring import TIMESTEP, Wiring, widen
from zeus_trt.export.onnx_nodes import PREFIX, Nodes, find_type
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME, TensorSpec

if TYPE_CHECKING:
    from zeus_trt.export.foreign_graph import ForeignGraph

_THEIRS = f"{PREFIX}foreign/"
_LEAST_OPSET = 11


def store_weights(graph: "ForeignGraph", file: Path) -> None:
    """Writes the weights of a graph beside ``file``, where its graphs will be; the model keeps no copy of them.

    Raises:
        ZeusError: A graph of operators that are too old.
    """
    import onnx

    model = graph.model
    if graph.opset < _LEAST_OPSET:
        raise ZeusError(
            f"model: got a graph of opset {graph.opset}; expected {_LEAST_OPSET} or later. Convert it with "
            "onnx.version_converter."
        )
    onnx.compose.add_prefix(model, _THEIRS, inplace=True)
    model.graph.ClearField("value_info")  # the sizes that it was exported at
    helper, name = onnx.external_data_helper, f"{file.name}.data"
    helper.convert_model_to_external_data(model, location=name, size_threshold=1024, convert_attribute=False)
    helper.write_external_data_tensors(model, str(file.parent))


def write_border(graph: "ForeignGraph", wiring: Wiring, parameterization: Parameterization, file: Path) -> None:
    """Writes the graph of a bundle; ``store_weights`` was called with the same file.

    Args:
        graph: The foreign graph.
        wiring: Which of its tensors is which.
        parameterization: What is computed before and after it.
        file: The graph's place.
    """
    import onnx

    model, nodes = onnx.ModelProto(), Nodes(graph.opset)
    model.CopyFrom(graph.model)
    rank = len(wiring.latents.axes)
    latents, time = parameterization.enter(nodes, wiring.latents.name, TIMESTEP, rank)
    fed = {wiring.latents.name: latents, wiring.timestep.name: time}
    fed |= {spec.name: spec.name for spec in wiring.conditioning}
    for spec in (wiring.latents, wiring.timestep, *wiring.conditioning):
        fed[spec.name] = _cast(nodes, fed[spec.name], spec, is_ours=spec is wiring.timestep)
    theirs = list(model.graph.node)
    output = (_call_by_rows if wiring.by_rows else _call)(nodes, wiring, fed, theirs)
    output = nodes.cast(output, "float32")
    output = parameterization.leave(nodes, output, wiring.latents.name, TIMESTEP, rank)
    nodes.nodes.append(onnx.helper.make_node("Identity", [output], [OUTPUT_NAME]))
    for field in ("node", "input", "output"):
        model.graph.ClearField(field)
    model.graph.node.extend(nodes.nodes)
    model.graph.initializer.extend(nodes.constants)
    model.graph.input.extend(_describe(spec) for spec in wiring.inputs)
    model.graph.output.append(_describe(TensorSpec(OUTPUT_NAME, "float32", wiring.latents.axes)))
    model.ir_version = max(model.ir_version, 8)
    file.write_bytes(model.SerializeToString())


def _call(nodes: Nodes, wiring: Wiring, fed: Mapping[str, str], theirs: list[Any]) -> str:
    """Writes a call of the foreign graph with all rows at once; returns the name of its output."""
    rank = len(wiring.timestep.axes)
    for name, value in fed.items():
        if name == wiring.timestep.name and rank > 1:
            value = nodes.unsqueeze(value, range(1, rank))
        _bind(nodes.nodes, value, name)
    nodes.nodes.extend(theirs)
    return f"{_THEIRS}{wiring.output}"


def _call_by_rows(nodes: Nodes, wiring: Wiring, fed: Mapping[str, str], theirs: list[Any]) -> str:
    """Writes a loop over the rows; its body calls the foreign graph with one of them."""
    import onnx

    body, rows, scanned = Nodes(nodes.opset, "row/"), [], []
    for spec in (wiring.latents, wiring.timestep, *wiring.conditioning):
        if spec is not wiring.timestep and spec is not wiring.latents and not wiring.has_rows(spec):
            _bind(nodes.nodes, fed[spec.name], spec.name)
            continue
        row = f"{PREFIX}row/{spec.name}"
        rows.append(onnx.helper.make_tensor_value_info(row, find_type(spec.dtype), None))
        scanned.append(fed[spec.name])
        axes = range(len(spec.axes)) if spec is wiring.timestep else (0,)
        _bind(body.nodes, body.unsqueeze(row, axes) if axes else row, spec.name)
    body.nodes.extend(theirs)
    output = body.cast(body.squeeze(f"{_THEIRS}{wiring.output}", (0,)), "float32")
    made = onnx.helper.make_tensor_value_info(output, find_type("float32"), None)
    loop = onnx.helper.make_graph(body.nodes, "row", rows, [made], body.constants)
    return nodes.add("Scan", *scanned, body=loop, num_scan_inputs=len(scanned))


def _cast(nodes: Nodes, value: str, spec: TensorSpec, is_ours: bool) -> str:
    """The value in the foreign type; a timestep that becomes an integer is rounded."""
    if spec.dtype == "float32" or (not is_ours and widen(spec).dtype == spec.dtype):
        return value
    is_integer = "float" not in spec.dtype
    return nodes.cast(nodes.add("Round", value) if is_integer else value, spec.dtype)


def _bind(nodes: list[Any], value: str, name: str) -> None:
    """Writes a value as an input of the foreign graph."""
    import onnx

    nodes.append(onnx.helper.make_node("Identity", [value], [f"{_THEIRS}{name}"]))


def _describe(spec: TensorSpec) -> Any:
    import onnx

    return onnx.helper.make_tensor_value_info(spec.name, find_type(spec.dtype), list(spec.axes))
