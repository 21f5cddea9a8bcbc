"""Models that compute with complex numbers are named so, with the place."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.graph import find_complex, write_graph

DYNAMIC = {0: torch.export.Dim.DYNAMIC}


class Rotary(torch.nn.Module):
    """Turns pairs of features, as Qwen-Image and Lumina do."""

    def forward(self, x, turns):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns.unsqueeze(0)).flatten(2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).float(), torch.tensor([1.0, 0.5]))
        turns = torch.polar(torch.ones_like(angles), angles).split([1, x.shape[1] - 1])
        return self.rotary(self.linear(x), torch.cat(turns))


def test_the_sentence_says_complex_and_where(tmp_path):
    program = torch.export.export(Model().eval(), (torch.randn(3, 5, 4),), dynamic_shapes=(DYNAMIC,), strict=False)
    assert "test_complex.py:" in find_complex(program)
    with pytest.raises(
        ZeusError, match=r"computes with complex numbers, first in .*test_complex\.py:\d+; exp"
    ) as caught:
        write_graph(program, ["x"], [("rows", 5, 4), ("rows", 5, 4)], tmp_path / "graph.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_real_models_have_none():
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.randn(3, 4),), dynamic_shapes=(DYNAMIC,), strict=False)
    assert find_complex(program) is None
