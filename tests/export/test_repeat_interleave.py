"""``repeat_interleave`` in all its forms, by sizes that vary too."""

import pytest
import torch

from zeus_trt.export.graph import write_graph
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine

FORMS = {
    "a size, to a product of sizes": lambda x, t: t.repeat_interleave(
        x.shape[2], dim=0, output_size=t.shape[0] * x.shape[2]
    ),
    "a size, no axis": lambda x, t: t.repeat_interleave(x.shape[2]),
    "a size, 3-d": lambda x, t: x.repeat_interleave(x.shape[2], dim=1),
    "a size, 3-d, negative axis": lambda x, t: x.repeat_interleave(x.shape[0], dim=-2),
    "a size, last axis": lambda x, t: x.repeat_interleave(x.shape[0], -1),
    "a size, first axis of a row": lambda x, t: x[:, 0, 0].repeat_interleave(x.shape[2], 0),
    "half a size": lambda x, t: torch.repeat_interleave(x, x.shape[2] // 2, 0),
    "a number": lambda x, t: x.repeat_interleave(3, dim=1),
    "a number, no axis": lambda x, t: x.repeat_interleave(3),
    "integers": lambda x, t: (x > 0).long().repeat_interleave(x.shape[2], dim=1).float(),
    "truths": lambda x, t: (x > 0).repeat_interleave(x.shape[2], dim=1).float(),
    "a tensor": lambda x, t: torch.repeat_interleave(x, torch.tensor([1, 2, 3]), dim=1),
    "a tensor, size given": lambda x, t: torch.repeat_interleave(x, torch.tensor([1, 0, 3]), dim=-2, output_size=4),
    "a tensor by a size": lambda x, t: torch.repeat_interleave(
        x, torch.full((3,), 1) * x.shape[2], dim=1, output_size=3 * x.shape[2]
    ),
    "a tensor, no axis": lambda x, t: torch.repeat_interleave(
        x[:, 0, 0], torch.ones(x.shape[0], dtype=torch.int64) * 2, output_size=x.shape[0] * 2
    ),
}


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, sample, timestep):
        return self.function(sample, timestep)


QUICK = ("half a size", "a number", "a tensor by a size", "integers")


@pytest.mark.parametrize(
    "form", [form if form in QUICK else pytest.param(form, marks=pytest.mark.extra) for form in FORMS]
)
def test_the_graph_is_the_function(form, tmp_path):
    net, dynamic = Net(FORMS[form]), torch.export.Dim.DYNAMIC
    examples = torch.randn(2, 3, 5), torch.randn(2, 1)
    program = torch.export.export(net, examples, dynamic_shapes=({0: dynamic, 2: dynamic}, {0: dynamic}), strict=False)
    axes = [("batch", 3, "tokens"), ("batch", 1), tuple(f"axis {axis}" for axis in range(net(*examples).ndim))]
    write_graph(program, ["sample", "timestep"], axes, tmp_path / "graph.onnx")
    engine = OnnxRuntimeEngine(tmp_path / "graph.onnx", num_threads=1)
    for batch, tokens in ((2, 5), (3, 7), (4, 2)):
        sample, timestep = torch.randn(batch, 3, tokens), torch.randn(batch, 1)
        assert torch.equal(engine(sample=sample, timestep=timestep), net(sample, timestep))
