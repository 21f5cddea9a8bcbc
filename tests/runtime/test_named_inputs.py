"""Inputs of an engine that are no tensors: numbers are cast, anything else is refused in one sentence."""

import numpy as np
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EagerEngine
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec


class Scale(torch.nn.Module):
    def forward(self, sample, timestep, count):
        return sample * timestep.view(-1, 1) + count


@pytest.fixture
def engine():
    names = {"sample": "float32", "timestep": "float32", "count": "int64"}
    return EagerEngine(Scale().eval(), [TensorSpec(name, dtype, ()) for name, dtype in names.items()])


@pytest.mark.parametrize("timestep", [3, 3.0, [3.0, 3.0], np.float32(3), np.array([3.0, 3.0])])
@pytest.mark.parametrize("count", [1, True, np.int64(1)])
def test_numbers_become_tensors(engine, timestep, count):
    output = engine(sample=[[1.0], [2.0]], timestep=timestep, count=count)
    assert torch.equal(output, torch.tensor([[4.0], [7.0]]))


@pytest.mark.parametrize("wrong", [None, "3", object(), [1.0, "x"], {"a": 1}, 10**40])
def test_what_is_no_number_is_refused(engine, wrong):
    with pytest.raises(ZeusError, match=f"eager: got a {type(wrong).__name__} for timestep; expected a tensor"):
        engine(sample=torch.ones(2, 1), timestep=wrong, count=1)


def test_latents_without_rows_are_refused(engine):
    with pytest.raises(ZeusError, match=r"eager: got sample of shape \(\); expected latents"):
        engine(sample=1.0, timestep=3, count=1)
