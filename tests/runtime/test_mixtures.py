"""Several adapters at chosen scales, without diffusers, peft and onnx: the sum of what each adds."""

import pytest
import torch
from safetensors.torch import save_file
from small_adapter import write_two
from small_bundle import LATENTS, list_file

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.adapter import FACTORS, place_of
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.bundle.mixture import read_choice, write_choice

INPUTS = {"sample": torch.ones(2, *LATENTS), "timestep": torch.zeros(2)}


@pytest.fixture
def bundle(tmp_path):
    return Bundle.open(write_two(tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("choice", "weight"),
    [
        ("ink", 0.6),
        ("ink:0.5", 0.6),
        ("ink:0.25", 0.35),
        ({"style": 0.1}, -0.1),
        ("ink:0.5,style:0.1", 0.4),
        ({"style": 0.1, "ink": None}, 0.4),
        (" style:-0.1 , ink", 0.8),
    ],
)
def test_the_weight_is_the_sum_at_the_scales(bundle, choice, weight):
    torch.testing.assert_close(fuse(bundle.with_adapter(choice))["scale"].value, torch.full(LATENTS, weight))


def test_an_engine_has_both_and_comes_back_to_the_bit(bundle):
    made, digests = {}, {}
    for number, choice in enumerate((None, "ink", "ink:0.6,style:0.1", "ink", None, {"style": 0.1, "ink": 0.6})):
        with Session(bundle, backend="onnxruntime", adapter=choice) as session:
            made[number], digests[number] = session.engine(**INPUTS).clone(), session.engine.adapter
            assert choice is None or "with ink" in repr(session)
    assert digests[0] == digests[4] == ""
    for one, other in ((0, 4), (1, 3), (2, 5)):
        assert torch.equal(made[one], made[other])
        assert digests[one] == digests[other]
    assert len({*digests.values()}) == 3
    torch.testing.assert_close(made[2], torch.full((2, *LATENTS), 1 + 0.1 + 0.6 - 0.2))


def test_a_choice_has_one_text(bundle):
    mixture = bundle.with_adapter({"style": 0.4, "ink": 0.6}).adapter
    assert mixture.name == "ink:0.6,style:0.4"
    assert bundle.with_adapter(mixture.name).adapter == mixture
    assert write_choice(read_choice("style,ink:1")) == "ink:1.0,style"
    assert bundle.with_adapter("ink:0.6,style:0.4001").adapter.sha256 != mixture.sha256


@pytest.mark.parametrize("choice", ["", "ink:", "ink:x", "ink:0", "ink:nan", "ink,ink:1", ",", {}, {"ink": True}, 3])
def test_a_choice_that_says_nothing_is_refused(bundle, choice):
    with pytest.raises(ZeusError, match=r"adapter: got .*; expected a name, or names with scales"):
        bundle.with_adapter(choice)


def test_a_mapping_is_named_by_what_it_holds(bundle):
    with pytest.raises(ZeusError, match="adapter: got 'ink' at 0, 'style' at 'x'; expected"):
        bundle.with_adapter({"ink": 0, "style": "x"})


def test_changes_of_other_sizes_do_not_add(bundle):
    place = place_of("style")
    save_file({"scale.delta": torch.ones(3)}, bundle.path / place / FACTORS)
    list_file(bundle.path, f"{place}/{FACTORS}")
    with pytest.raises(ZeusError, match=r"changes of scale of \(1, 16\), \(3,\); expected one shape"):
        fuse(Bundle.open(bundle.path).with_adapter("ink,style"))
