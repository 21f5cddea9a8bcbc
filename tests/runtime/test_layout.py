"""Several tensors of a network as one output, and back."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.layout import Layout, pack
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

SYMBOLS = (SymbolSpec("height", (4, 8)), SymbolSpec("half", (2, 4), factors=("height",), scale="1/2"))
TENSORS = (
    TensorSpec("a", "float32", ("batch", 3, "height", "height"), "output"),
    TensorSpec("b", "float32", ("batch", "half"), "output"),
    TensorSpec("c", "float32", ("batch", 2, 1), "output"),
)


def draw(height, batch=2):
    return [torch.randn(batch, 3, height, height), torch.randn(batch, height // 2), torch.randn(batch, 2, 1)]


@pytest.mark.parametrize("height", [4, 6, 14])
def test_what_is_packed_is_split_as_it_nested(height):
    a, b, c = tensors = draw(height)
    layout = Layout(TENSORS, [[0, 1], None, {"3": 2}])
    (first, second), nothing, third = layout.split(pack(tensors), {"height": height}, SYMBOLS)
    assert torch.equal(first, a)
    assert torch.equal(second, b)
    assert nothing is None
    assert third.keys() == {3}
    assert torch.equal(third[3], c)


def test_an_output_of_another_size_is_refused():
    with pytest.raises(ZeusError, match="numbers per row; expected 52"):
        Layout(TENSORS, [0, 1, 2]).split(pack(draw(6)), {"height": 4}, SYMBOLS)


@pytest.mark.parametrize("nesting", [[0, 1], [0, 1, 1, 2], [0, 1, 3], [0, 1, "2"], [0, 1, True], [[[[[0]]]], 1, 2], 0])
def test_a_nesting_that_does_not_hold_each_tensor_once_is_refused(nesting):
    with pytest.raises(ValueError, match="layout has"):
        Layout(TENSORS, nesting)


def test_a_tensor_without_rows_is_refused():
    with pytest.raises(ValueError, match="without rows"):
        Layout((TensorSpec("a", "float32", (3,), "output"),), [0])
