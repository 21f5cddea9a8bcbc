"""Kinds of graphs that torch's exporter gets wrong for engines, each as small as it can be."""

import onnx
import onnxruntime
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.graph import write_graph

DYNAMIC = {0: torch.export.Dim.DYNAMIC}


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def square(x):
    """float32 (rows, 4) by way of an unknown second axis, which squeezes to nothing."""
    return x.reshape(-1, x.shape[0]).squeeze(0).reshape(x.shape[0], 4)


def mask(x):
    few = (x > 0).masked_fill(x > 1, False).masked_fill(x < -1, True)
    return torch.where(few, x, -x)


def promote(x):
    return torch.concat([x.half(), x, torch.cat([x.half(), x.half() + 1])], dim=0)


def divide(x):
    return (x * 0) / (x * 0 + 1e-9)


def rotate(x):
    angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * torch.tensor([0.5, 0.25], dtype=torch.float64)
    return x[:, :2] * angles.cos().float() + x[:, 2:] * angles.sin().to(x.dtype)


@pytest.mark.parametrize("function", [square, mask, promote, divide, rotate])
def test_the_graph_is_the_function(function, tmp_path):
    program = torch.export.export(Module(function), (torch.randn(3, 4),), dynamic_shapes=(DYNAMIC,), strict=False)
    columns = program.module()(torch.randn(3, 4)).shape[1]
    write_graph(program, ["x"], [("rows", 4), ("rows_out", columns)], tmp_path / "graph.onnx")

    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        (got,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), function(x), rtol=1e-5, atol=1e-5)
    graph = onnx.load(tmp_path / "graph.onnx").graph
    assert graph.output[0].type.tensor_type.shape.dim[0].dim_param == "rows_out"
    types = [value.type.tensor_type.elem_type for value in graph.value_info]
    assert onnx.TensorProto.DOUBLE not in [*types, *(tensor.data_type for tensor in graph.initializer)]


def test_what_onnx_has_no_form_for_is_named(tmp_path):
    def transform(x):
        return torch.fft.rfft(x).real

    program = torch.export.export(Module(transform), (torch.randn(3, 4),), dynamic_shapes=(DYNAMIC,), strict=False)
    with pytest.raises(ZeusError, match=r"fft_rfft\S* on complex numbers at test_graph\.py:\d+; exp") as caught:
        write_graph(program, ["x"], [("rows", 4), ("rows", 3)], tmp_path / "graph.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
