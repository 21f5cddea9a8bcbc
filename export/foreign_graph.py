"""An ONNX graph that others exported: its inputs, types and axes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.foreign_border import store_weights, write_border
from zeus_trt.export.foreign_model import ForeignModel, name_axis, to_word
from zeus_trt.export.foreign_wiring import Wiring
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime.bundle.manifest import Graph, Manifest
from zeus_trt.runtime.bundle.precision import FLOATS, Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import DTYPES, TensorSpec
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine

if TYPE_CHECKING:
    from zeus_trt.export.foreign_findings import Findings


@dataclass(frozen=True, kw_only=True)
class ForeignGraph(ForeignModel):
    """A graph in memory, with its weights.

    Args:
        model: An ``onnx.ModelProto``.
        file: Where graphs are written to be run, beside its weights, which ``model`` no longer has then.
        stored: The precision of these weights.
    """

    model: Any
    file: Path | None = None
    stored: Precision | None = None

    @property
    def backend(self) -> str:
        return "onnxruntime"

    def prepare(self, folder: Path) -> "ForeignGraph":
        precision = self.precision
        file = folder / Graph(precision).file
        file.parent.mkdir(parents=True)
        store_weights(self, file)
        return replace(self, file=file, stored=precision)

    def compute(
        self, wiring: Wiring, parameterization: Parameterization, inputs: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        assert self.file
        write_border(self, wiring, parameterization, self.file)
        with OnnxRuntimeEngine(self.file) as engine:
            return engine(**inputs)

    def complete(self, manifest: Manifest, found: "Findings", folder: Path) -> Manifest:
        assert self.file
        write_border(self, found.wiring, found.trial.parameterization, self.file)
        write_metadata(self.file, SizeRules.of(manifest), self.precision)
        return replace(manifest, graphs=(Graph(self.precision, verification=found.records),))

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

        if self.stored:
            return self.stored
        sizes = dict.fromkeys(FLOATS, 0)
        for tensor in self.model.graph.initializer:
            name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
            kind = {"float": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}.get(name)
            if kind is not None:
                sizes[kind] += len(tensor.raw_data) or 4 * len(tensor.float_data) or 2 * len(tensor.int32_data)
        return max(sizes, key=lambda kind: sizes[kind])


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
    outputs = tuple(value.name for value in model.graph.output)
    return ForeignGraph(path=path, model=model, inputs=specs, outputs=outputs)


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
    return to_word(axis.dim_param) or name_axis(name, place)
