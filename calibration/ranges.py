"""The ranges of the activations of a graph, over recorded calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError

_WEIGHTS = "session.model_external_initializers_file_folder_path"
_KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
_ENDS = {"ReduceMin": np.minimum, "ReduceMax": np.maximum}


def collect_ranges(
    onnx: Path, names: Sequence[str], calls: Iterator[Mapping[str, np.ndarray]]
) -> dict[str, tuple[float, float]]:
    """Runs a graph on recorded calls, one at a time; only the smallest and the largest number of a tensor are kept.

    Args:
        onnx: The graph in fp32 or fp16.
        names: Tensors in it.
        calls: Inputs by name.

    Raises:
        ZeusError: A range that is not finite, or no call at all.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    options.add_session_config_entry(_WEIGHTS, str(onnx.parent))
    session = onnxruntime.InferenceSession(_watch(onnx, names), options, providers=["CPUExecutionProvider"])
    kinds = {spec.name: _KINDS.get(spec.type) for spec in session.get_inputs()}
    outputs = [f"{name} {end}" for name in names for end in _ENDS]
    found: dict[str, Any] = {}
    for recorded in calls:
        inputs = {name: value.astype(kinds[name] or value.dtype, copy=False) for name, value in recorded.items()}
        for output, value in zip(outputs, session.run(outputs, inputs), strict=True):
            merge: Callable[..., Any] = _ENDS[output.rpartition(" ")[2]]
            found[output] = merge(found.get(output, value), value)
    ranges = {name: (float(found[f"{name} ReduceMin"]), float(found[f"{name} ReduceMax"])) for name in names if found}
    wrong = [name for name in names if name not in ranges or not np.isfinite(ranges[name]).all()]
    if wrong:
        raise ZeusError(
            f"ranges: got {ranges.get(wrong[0], 'no call')} of {wrong[0]}; expected finite numbers. "
            "Run the float graph first, and look at its samples."
        )
    return ranges


def _watch(onnx: Path, names: Sequence[str]) -> bytes:
    """A graph that returns the ends of these tensors; its weights stay where they are."""
    import onnx as library
    from onnx import TensorProto, helper

    model = library.load(str(onnx), load_external_data=False)
    for name in names:
        model.graph.node.append(helper.make_node("Cast", [name], [f"{name} float"], to=TensorProto.FLOAT))
        for end in _ENDS:
            output = f"{name} {end}"
            model.graph.node.append(helper.make_node(end, [f"{name} float"], [output], keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    return model.SerializeToString()
