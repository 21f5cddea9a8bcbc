"""A real bundle, made in milliseconds: a graph of two operators with external weights, a scheduler, a stored solver."""

import dataclasses
import json
from pathlib import Path

import diffusers
import numpy as np
import onnx
from checkout import edit_json
from onnx import TensorProto, helper, numpy_helper

from zeus_trt.export.folder import seal, write_solvers
from zeus_trt.files import digest_file
from zeus_trt.runtime.bundle.manifest import Graph, Manifest, Verification, graph_name
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

STEPS = 5
GRAPH = graph_name("fp32")
LATENTS = (1, 4, 4)  # channels, height, width


def make_graph(location: str | None = f"{Path(GRAPH).name}.data") -> onnx.ModelProto:
    """``model_output = sample * scale + timestep[:, None, None, None]``, its scale in the file ``location``."""
    scale = numpy_helper.from_array(np.full(LATENTS, 0.1, np.float32), "scale")
    shape = numpy_helper.from_array(np.array([-1, 1, 1, 1], np.int64), "shape")
    if location is not None:
        onnx.external_data_helper.set_external_data(scale, location, offset=0, length=len(scale.raw_data))
        scale.ClearField("raw_data")
        scale.data_location = TensorProto.EXTERNAL
    nodes = [
        helper.make_node("Mul", ["sample", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["timestep", "shape"], ["rows"]),
        helper.make_node("Add", ["scaled", "rows"], ["model_output"]),
    ]
    float32, sizes = TensorProto.FLOAT, ["batch", *LATENTS]
    inputs = [
        helper.make_tensor_value_info(*spec) for spec in (("sample", float32, sizes), ("timestep", float32, ["batch"]))
    ]
    output = helper.make_tensor_value_info("model_output", float32, sizes)
    graph = helper.make_graph(nodes, "denoiser", inputs, [output], [scale, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_manifest() -> Manifest:
    """The manifest of ``make_graph``, before it is sealed."""
    sample = TensorSpec("sample", "float32", ("batch", *LATENTS), "latents")
    return Manifest(
        model="small", component="unet", denoiser_class="Small", denoiser_config={"act": "silu"},
        weights_sha256="0" * 64, prediction_type="epsilon",
        inputs=(sample, TensorSpec("timestep", "float32", ("batch",), "timestep")),
        output=TensorSpec("model_output", "float32", ("batch", *LATENTS), "output"),
        symbols=(SymbolSpec("batch", (1, 2)),), labels=None,
        graphs=(Graph(Precision.FP32, (), (Verification("onnxruntime", (2, *LATENTS), "float32", 1e-7, 1e-7),)),),
        versions={}, guidance="none",
    )  # fmt: skip


def write_bundle(folder: Path, **scales: float) -> Path:
    """Writes the bundle into a new folder; ``scales`` is what further graphs multiply with, by precision."""
    manifest = make_manifest()
    for precision, scale in {"fp32": 0.1, **scales}.items():
        graph = folder / graph_name(precision)
        graph.parent.mkdir(parents=True)
        graph.write_bytes(make_graph().SerializeToString())
        graph.with_name("denoiser.onnx.data").write_bytes(np.full(LATENTS, scale, np.float32).tobytes())
    write_solvers(diffusers.EulerDiscreteScheduler(), (STEPS,), folder)
    graphs = (*manifest.graphs, *(Graph(Precision(precision)) for precision in scales))
    seal(dataclasses.replace(manifest, graphs=graphs), folder)
    return folder


def list_file(bundle: Path, name: str, path: Path | None = None) -> None:
    """Lists a file in the manifest as export would, whatever it holds and wherever it is."""
    path = path or bundle / name
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    edit_json(
        bundle / "manifest.json", files={**files, name: {"size": path.stat().st_size, "sha256": digest_file(path)}}
    )
