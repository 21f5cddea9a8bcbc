"""Rows that a call passes in lists, of tensors or of lists of tensors."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.runs import find_rows
from zeus_trt.runtime.bundle.manifest import Graph, Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.pipelines.engine_call import EngineCall


def call_with(rows):
    """A call as Z-Image Omni makes: of each row a clean picture and the latents, and which of the two is which."""
    pictures = [[torch.full((4, 8), float(row)), torch.full((4, 6), row + 0.5)] for row in range(rows)]
    return {"x": pictures, "t": torch.ones(rows), "noise": [[0, 1]] * rows, "other": [None] * rows}


def test_a_row_of_lists_of_tensors_is_taken_and_restored():
    rows, call = find_rows([call_with(2), call_with(3)]), call_with(2)
    assert rows.is_one
    flat = rows.flatten(call, row=1)
    assert {name: tuple(leaf.shape) for name, leaf in flat.tensors.items()} == {
        "x.0.0": (1, 4, 8), "x.0.1": (1, 4, 6), "t": (1,),
    }  # fmt: skip
    assert rows.count("x.0.1", call) == 2
    restored = rows.restore(flat.nest(flat.leaves))
    assert [len(entries) for entries in restored["x"]] == [2]
    for found, own in zip(restored["x"][0], call["x"][1], strict=True):
        assert torch.equal(found, own)
    assert (restored["noise"], restored["other"]) == ([[0, 1]], [None])


class Net(torch.nn.Module):
    """A double of a denoiser."""

    def forward(self, x, t, noise, other):
        return ([entries[1] + entries[0].mean() for entries in x],)


def test_an_engine_answers_row_by_row():
    manifest = Manifest(
        model="toy", component="transformer", denoiser_class="Net", denoiser_config={}, weights_sha256="",
        prediction_type="epsilon", output=TensorSpec("model_output", "float32", (1, 4, 6), "output"), symbols=(),
        labels=None, graphs=(Graph(Precision.FP32),), versions={},
        constants={"noise.0.0": 0, "noise.0.1": 1, "other.0": None},
        inputs=(
            TensorSpec("x.0.1", "float32", (1, 4, 6), "latents"), TensorSpec("t", "float32", (1,), "timestep"),
            TensorSpec("x.0.0", "float32", (1, 4, 8)),
        ),
    )  # fmt: skip
    call = EngineCall(lambda **inputs: inputs["x.0.1"] + inputs["x.0.0"].mean(), manifest, Net)
    for rows in (1, 3):
        (answer,) = call(**call_with(rows))
        expected = Net()(**call_with(rows))[0]
        assert isinstance(answer, list)
        for found, own in zip(answer, expected, strict=True):
            assert torch.equal(found, own)


def test_entries_of_plain_values_that_differ_are_refused():
    rows = find_rows([{"shapes": [[(1, 4)]] * 2, "t": torch.ones(2)}, {"shapes": [[(1, 4)]] * 3, "t": torch.ones(3)}])
    with pytest.raises(ZeusError, match="shapes: got entries that differ from row to row"):
        rows.flatten({"shapes": [[(1, 4)], [(2, 4)]], "t": torch.ones(2)})
