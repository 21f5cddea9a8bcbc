"""Parts of a tensor along an axis that varies."""

import onnx
import pytest
import torch

from zeus_trt.export.graph import write_graph
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine

FORMS = {
    "halves": lambda x: torch.cat([*x.chunk(2)][::-1]),
    "thirds of the last axis": lambda x: torch.cat([*x.chunk(3, dim=-1)][::-1], dim=-1),
    "parts of a varying size": lambda x: torch.cat([*x.split(x.shape[0] // 2)][::-1]),
    "parts of a number": lambda x: torch.cat([x.split(2, dim=1)[1], x], dim=1),
}


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, sample, timestep):
        return self.function(sample) * timestep[:, :, None]


@pytest.mark.parametrize("form", FORMS)
def test_the_graph_is_the_function(form, tmp_path):
    net, dynamic = Net(FORMS[form]), torch.export.Dim.DYNAMIC
    examples = torch.randn(4, 5, 6), torch.randn(4, 1)
    program = torch.export.export(net, examples, dynamic_shapes=({0: dynamic, 2: dynamic}, {0: dynamic}), strict=False)
    axes = [("batch", 5, "tokens"), ("batch", 1), ("batch", "channels", "tokens")]
    write_graph(program, ["sample", "timestep"], axes, tmp_path / "graph.onnx")
    graph = onnx.load(tmp_path / "graph.onnx").graph
    assert not [node.op_type for node in graph.node if "Sequence" in node.op_type]
    engine = OnnxRuntimeEngine(tmp_path / "graph.onnx", num_threads=1)
    for batch, tokens in ((4, 6), (6, 9), (2, 12), (8, 5)):
        sample, timestep = torch.randn(batch, 5, tokens), torch.randn(batch, 1)
        assert torch.equal(engine(sample=sample, timestep=timestep), net(sample, timestep))
