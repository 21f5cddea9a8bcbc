"""Every family: captured, exported, and compared with eager in ONNX Runtime at sizes that export never saw."""

import onnx
import onnxruntime
import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.export.agreement import BATCHES, compare, list_cases
from zeus_trt.export.capture import capture

QUICK = {"sd15": (), "flux": (), "wan": pytest.mark.extra}  # the others repeat them
NAMES = [pytest.param(name, marks=QUICK.get(name, pytest.mark.slow)) for name in FAMILIES]


def open_graph(path):
    """The graph in ONNX Runtime as a function of named tensors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(**inputs):
        return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])

    return run


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_agrees_with_eager(name, family_bundle):
    family, bundle = FAMILIES[name], family_bundle(name)
    pipeline = family.make()
    captured = capture(pipeline, family.settings, is_one=bundle.manifest.latents.axes[0] == 1)
    sides = [symbol for symbol in bundle.manifest.symbols if symbol.name in ("height", "width")]
    assert {symbol.multiple_of for symbol in sides} <= {family.multiple_of}
    assert {str(relation) for relation in bundle.manifest.relations} == family.relations
    check_graph(bundle.graph(), captured)
    cases = list_cases(captured, pipeline, family.settings, ({}, *family.unseen))
    records = compare(captured.denoiser, open_graph(bundle.graph()), cases, "onnxruntime", leave=captured.leave)
    rows = 1 + len(BATCHES) if captured.has_batch else 2  # the first and the last row of the pipeline's own call
    assert len(records) == (1 + len(family.unseen)) * rows
    assert all(0 < record.relative_error < 1e-4 for record in records)
    seen = max(record.relative_error for record in records if not record.setting)
    unseen = max(record.relative_error for record in records if record.setting)
    print(f"{name}: error {seen:.1e}, unseen {unseen:.1e}")


def check_graph(path, captured):
    graph = onnx.load(path, load_external_data=False).graph
    read = [
        (value.name, tuple(axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim))
        for value in (*graph.input, *graph.output)
    ]
    assert read == [
        *((spec.name, spec.axes) for spec in captured.inputs),
        ("model_output", captured.output_axes),
    ]
    double = onnx.TensorProto.DOUBLE
    assert not [tensor.name for tensor in graph.initializer if tensor.data_type == double]
    assert not [node.name for node in graph.node for attribute in node.attribute if is_double(attribute)]
    assert captured.examples[1].dtype == torch.float32
    assert b"site-packages" not in path.read_bytes()


def is_double(attribute):
    named = attribute.name in ("to", "dtype") and attribute.i == onnx.TensorProto.DOUBLE
    return named or attribute.t.data_type == onnx.TensorProto.DOUBLE
