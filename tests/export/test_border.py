"""The border of a graph: what it does around its denoiser."""

import pytest
import torch

from zeus_trt.export.border import Axes, Border, find_border

STATE = ("batch", 4, "height", "width")
NINE = ("batch", 9, "height", "width")
EIGHT = ("batch", 8, "height", "width")
NAMES = ("sample", "timestep")


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_a_call_is_split_and_put_together_again():
    border = Border("sample", "timestep", 0.001, constant_axis=1, size=4, dtypes={"sample": torch.float16})
    call = {"sample": rand(2, 9, 4, 4).half(), "timestep": torch.tensor([0.9, 0.5]), "ids": torch.tensor([3, 4])}
    inputs = border.split(call)
    assert list(inputs) == ["sample", "timestep", "sample_constant", "ids"]
    assert inputs["sample"].shape == (2, 4, 4, 4)
    torch.testing.assert_close(inputs["timestep"], torch.tensor([900.0, 500.0]))
    assert {name: value.dtype for name, value in inputs.items() if name != "ids"} == dict.fromkeys(
        ("sample", "timestep", "sample_constant"), torch.float32
    )
    entered = border.enter(inputs)
    assert torch.equal(entered["sample"], call["sample"])
    assert entered["sample"].dtype == torch.float16
    torch.testing.assert_close(entered["timestep"], call["timestep"])
    assert entered["ids"] is inputs["ids"]


def test_a_learned_variance_is_dropped():
    output = rand(2, 8, 4, 4).half()
    left = Border("sample", "timestep", variance_axis=1).leave(output)
    assert torch.equal(left, output[:, :4].float())
    assert torch.equal(Border("sample", "timestep").leave(output), output.float())


@pytest.mark.parametrize(
    ("axes", "constant", "variance"),
    [
        (Axes(STATE, STATE, STATE), None, None),
        (Axes(NINE, STATE, STATE), 1, None),
        (Axes(STATE, STATE, EIGHT), None, 1),
        (Axes(("batch", "tokens", 20), ("batch", "tokens", 16), ("batch", "tokens", 16)), 2, None),
    ],
)
def test_what_a_solver_can_step(axes, constant, variance):
    border = find_border(NAMES, axes, 0.001)
    assert (border.constant_axis, border.variance_axis, border.unsteppable) == (constant, variance, "")
    assert (border.timestep_scale, border.size) == (0.001, axes.state[constant] if constant else 0)


@pytest.mark.parametrize(
    ("axes", "scale", "learns", "reason"),
    [
        (Axes(STATE, STATE, STATE), None, False, "no multiple of the solver's timestep"),
        (Axes(("batch", "tokens", 16), ("batch", 12, 16), ("batch", "tokens", 16)), 1.0, False, "the solver steps"),
        (Axes(STATE, STATE, ("batch", 6, "height", "width")), 1.0, False, "it returns"),
        (Axes(STATE, STATE, EIGHT), 1.0, True, "its scheduler reads the variance"),
    ],
)
def test_what_no_solver_can_step_keeps_the_denoisers_own_border(axes, scale, learns, reason):
    border = find_border(NAMES, axes, scale, learns_variance=learns)
    assert reason in border.unsteppable
    call = {"sample": rand(2, 4), "timestep": torch.tensor([0.5, 0.5])}
    assert all(torch.equal(value, call[name]) for name, value in border.enter(border.split(call)).items())
