"""An ONNX graph that others exported: its inputs, types and axes."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.precision import FLOATS, Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import DTYPES, TensorSpec

BATCH = "batch"


@dataclass(frozen=True)
class ForeignGraph:
    """A graph in memory, with its weights.

    Args:
        path: Where it was read.
        model: An ``onnx.ModelProto``.
        inputs: Its inputs in order. A dynamic axis has the graph's name for it, or one made of the input's.
        outputs: Names of its outputs.
        sizes: Those of its dynamic axes that it was made at, where it says so.
        rules: What it asks of its sizes, where it says so.
        original: What it was converted from: a function from its inputs to its outputs, each by name.
    """

    path: Path
    model: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    rules: SizeRules | None = None
    original: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of its weights, over names, types, sizes and bytes."""
        import onnx

        digest = hashlib.sha256()
        for tensor in sorted(self.model.graph.initializer, key=lambda tensor: tensor.name):
            digest.update(f"{tensor.name} {tensor.data_type} {tuple(tensor.dims)}".encode())
            digest.update(tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes())
        return digest.hexdigest()

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return next(entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx"))

    @property
    def precision(self) -> Precision:
        """That of most of its floating-point weights; fp32 without any."""
        import onnx

        sizes = dict.fromkeys(FLOATS, 0)
        for tensor in self.model.graph.initializer:
            name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
            kind = {"float": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}.get(name)
            if kind is not None:
                sizes[kind] += len(tensor.raw_data) or 4 * len(tensor.float_data) or 2 * len(tensor.int32_data)
        return max(sizes, key=lambda kind: sizes[kind])

    def find(self, option: str, name: str) -> TensorSpec:
        """The input of that name.

        Args:
            option: The option that names it, for the message.
            name: The input.

        Raises:
            ZeusError: The graph has no such input; the message lists those that it has.
        """
        found = next((spec for spec in self.inputs if spec.name == name), None)
        if found is None:
            raise ZeusError(
                f"{option}: got {name!r}; expected an input of {self.path.name}: {list_specs(self.inputs)}. Name one "
                "of these."
            )
        return found


def list_specs(specs: Sequence[TensorSpec]) -> str:
    """Names, types and axes of inputs, for messages."""
    return "; ".join(map(str, specs))


def read_foreign(path: str | Path) -> ForeignGraph:
    """Reads a graph and its weights, which may be in other files beside it.

    Raises:
        ZeusError: No such file, no ONNX graph, weights that are missing or outside of its folder, or inputs of a type
            or rank that nothing here can pass.
    """
    import onnx

    path = Path(path)
    try:
        model = onnx.load(str(path))
        inputs = {value.name: value for value in model.graph.input}
        for tensor in model.graph.initializer:
            inputs.pop(tensor.name, None)  # before version 4 of the format each initializer was an input too
        specs = tuple(map(_read_spec, inputs.values()))
        if not model.graph.output or len(specs) < 2:
            raise ValueError(f"it has {len(specs)} inputs and {len(model.graph.output)} outputs")
    except ZeusError:
        raise
    except Exception as error:  # protobuf, onnx and the file system raise their own
        raise ZeusError(
            f"model: got {path}, which does not read ({say_cause(error)}); expected an ONNX graph of latents and a "
            "timestep, with its weights beside it. Give its .onnx file."
        ) from error
    return ForeignGraph(path, model, specs, tuple(value.name for value in model.graph.output))


def _read_spec(value: Any) -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    raw = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if value.type.HasField("tensor_type") else "no tensor"
    dtype = {"float": "float32", "double": "float64"}.get(raw, raw)
    if dtype not in DTYPES or not kind.HasField("shape"):
        got = raw if dtype not in DTYPES else "unknown rank"
        raise ZeusError(
            f"model: got the input {value.name} of {got}; expected a tensor of numbers and known rank. Export the "
            "graph again."
        )
    axes = [_read_axis(value.name, place, axis) for place, axis in enumerate(kind.shape.dim)]
    return TensorSpec(value.name, dtype, tuple(axes))


def _read_axis(name: str, place: int, axis: Any) -> int | str:
    if axis.HasField("dim_value") and axis.dim_value > 0:
        return axis.dim_value
    return _to_word(axis.dim_param) or name_axis(name, place)


def name_axis(name: str, place: int) -> str:
    """A name for an axis that has none: made of its input's."""
    return f"{_to_word(name)}_{place}"


def _to_word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")
