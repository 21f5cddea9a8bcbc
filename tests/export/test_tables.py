"""Tables that a model computes of nothing are constants of its graph, with torch's own numbers."""

import math

import onnx
import onnxruntime
import torch

from zeus_trt.export.graph import write_graph
from zeus_trt.export.tables import compute_tables

T = torch.tensor([0.9, 0.25, 0.125])


class Sinusoid(torch.nn.Module):
    """Embeds times from 0 to 1 in angles of up to 63000, which are 0.004 apart in float32, as Stable Audio 3 does."""

    def forward(self, t):
        slopes = torch.exp(torch.linspace(0.0, 1.0, 64) * math.log(20000.0)) * 0.5
        slopes = torch.cat([slopes, (10000.0 ** (torch.arange(64, dtype=torch.float64) / 64)).float()])
        angles = t[:, None] * slopes * 2 * math.pi
        return torch.cat([angles.cos(), angles.sin()], 1)


class Written(torch.nn.Module):
    """Writes into what it makes of nothing."""

    def forward(self, t):
        table = torch.zeros(3)
        table[1:].add_(t[1:])
        return table * 2 + torch.ones(3).exp() + torch.rand(3)


def test_a_table_has_the_numbers_of_torch(tmp_path):
    model, path = Sinusoid(), tmp_path / "graph.onnx"
    program = torch.export.export(model, (T,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    write_graph(program, ["t"], [("rows",), ("rows", 256)], path)
    given = program.graph_signature.input_specs[-1].arg.name
    names = {node.name: node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"}
    assert [type(shape[0]) for name, shape in names.items() if name != given] == [int]
    assert not {"Exp", "Pow"} & {node.op_type for node in onnx.load(str(path)).graph.node}
    session = onnxruntime.InferenceSession(str(path))
    for t in (T, torch.linspace(0, 1, 5)):
        (found,) = session.run(None, {"t": t.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(t), rtol=0, atol=1e-6)


class Orthogonal(torch.nn.Module):
    """Makes a basis of a weight, as Wan-Animate does."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 1.0]]))

    def forward(self, t):
        moved = torch.linalg.qr(self.weight + 1e-8)[0].T @ t
        return moved.add(1).relu_()  # writes into what a sum is stored in, not into what it is made of


def test_a_basis_of_weights_is_a_table(tmp_path):
    model, path = Orthogonal().eval(), tmp_path / "graph.onnx"
    with torch.no_grad():
        write_graph(torch.export.export(model, (T,), strict=False), ["t"], [(3,), (2,)], path)
        (found,) = onnxruntime.InferenceSession(str(path)).run(None, {"t": T.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(T))


def test_what_is_written_into_or_drawn_is_no_table():
    program = torch.export.export(Written(), (T,), strict=False)
    compute_tables(program)
    assert [*program.constants] == ["table_exp"]
    for t in (T, 2 * T):
        torch.manual_seed(0)
        found = program.module()(t)
        torch.manual_seed(0)
        assert found.equal(Written()(t))
