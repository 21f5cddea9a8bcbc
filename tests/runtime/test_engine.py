"""The ONNX Runtime engine."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.runtime.engines.named_inputs import cast_inputs


@pytest.fixture(scope="module")
def engine(digits_bundle):
    return OnnxRuntimeEngine(Bundle.open(digits_bundle("unet-flow")).graph())


def inputs(batch=2):
    return {
        "sample": torch.ones(batch, 1, 32, 32),
        "timestep": torch.full((batch,), 500.0),
        "class_labels": torch.zeros(batch, dtype=torch.int64),
    }


def test_inputs_are_cast_and_a_single_timestep_serves_every_row(engine):
    expected = engine(**inputs())
    for timestep in (torch.tensor(500), torch.tensor([500.0], dtype=torch.float64), torch.tensor([500, 500])):
        cast = {"timestep": timestep, "sample": inputs()["sample"].double(), "class_labels": torch.zeros(2).int()}
        assert torch.equal(engine(**cast), expected)


def test_rows_may_stand_at_different_timesteps(engine):
    together = engine(**{**inputs(2), "timestep": torch.tensor([100.0, 900.0])})
    alone = engine(**{**inputs(1), "timestep": torch.tensor([900.0])})
    torch.testing.assert_close(together[1:], alone)


def test_outputs_belong_to_the_caller(engine):
    first = engine(**inputs())
    kept = first.clone()
    engine(**{**inputs(), "timestep": torch.tensor([1.0, 1.0])})
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.pop("class_labels"), "expected .*class_labels"),
        (lambda x: x.update(extra=torch.ones(2)), "got the inputs .*extra"),
        (lambda x: x.update(sample=torch.ones(2, 1, 16, 16)), "got the shape"),
    ],
)
def test_wrong_inputs_are_named(engine, change, reason):
    wrong = inputs()
    change(wrong)
    with pytest.raises(ZeusError, match=reason):
        engine(**wrong)


def test_a_missing_provider_is_no_silent_fallback(digits_bundle):
    with pytest.raises(ZeusError, match="got no TensorrtExecutionProvider"):
        OnnxRuntimeEngine(Bundle.open(digits_bundle("unet-flow")).graph(), "TensorrtExecutionProvider")


def test_rows_are_those_of_the_latents():
    """FLUX at one image: its position tables are longer than the batch."""
    inputs = {"hidden_states": torch.zeros(1, 9, 4), "timestep": torch.tensor([0.5]), "img_ids": torch.zeros(9, 3)}
    cast = cast_inputs("engine", inputs, dict.fromkeys(inputs, torch.float32), torch.device("cpu"))
    assert cast["timestep"].shape == (1,)
    assert cast["img_ids"].shape == (9, 3)
