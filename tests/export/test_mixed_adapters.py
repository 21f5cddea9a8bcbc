"""Two adapters at once: an engine with both equals the pipeline with both, and the pipeline's scales are compared."""

import pytest
import torch
from lora_files import find_denoiser, make, save
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export import add_adapter
from zeus_trt.runtime import Session, accelerate

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
EMBEDS = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def pipeline():
    """One with ink and style active, at 0.6 and 0.4."""
    made, _ = make("sd15")
    other, _ = make("sd15", "style", targets=("to_k", "to_q"))
    weights = peft.get_peft_model_state_dict(find_denoiser(other), adapter_name="style")
    made.unet.add_adapter(other.unet.peft_config["style"], "style")
    peft.set_peft_model_state_dict(made.unet, weights, adapter_name="style")
    made.set_adapters(["ink", "style"], [0.6, 0.4])
    return made


@pytest.fixture(scope="module")
def bundle(family_bundle, pipeline, tmp_path_factory):
    """One with ink stored at 0.5, and style at 1."""
    stored = family_bundle("sd15")
    for name, scale in (("ink", 0.5), ("style", 1.0)):
        stored = add_adapter(stored, save(pipeline, tmp_path_factory.mktemp(name), name), name, scale=scale)
    return stored.path


def ask(one):
    return one(
        prompt_embeds=EMBEDS[:1], negative_prompt_embeds=EMBEDS[1:], height=64, width=64, num_inference_steps=3,
        output_type="latent", generator=torch.Generator().manual_seed(0),
    ).images  # fmt: skip


def test_the_engine_equals_the_pipeline_with_both(bundle, pipeline):
    expected = ask(pipeline)
    with accelerate(pipeline, 0, engine=bundle, adapter={"ink": 0.6, "style": 0.4}) as fast:
        assert (ask(fast) - expected).norm() < 1e-4 * expected.norm()
    with Session(bundle, adapter="ink:0.6,style:0.4") as session:
        with accelerate(pipeline, 0, engine=session, adapter="style:0.4,ink:0.6") as fast:
            ask(fast)
        with pytest.raises(ZeusError, match="beside a session without it"):
            accelerate(pipeline, 0, engine=session, adapter="style:0.4,ink:0.5")


@pytest.mark.parametrize(("choice", "message"), [
    ("ink:0.6", r"adapters: got ink at 0.6, style at 0.4 .* expected ink at 0.6, as"),
    ("ink,style:0.4", "expected ink at 0.5, style at 0.4"),
])  # fmt: skip
def test_other_adapters_or_scales_are_refused(bundle, pipeline, choice, message):
    with accelerate(pipeline, 0, engine=bundle, adapter=choice) as fast, pytest.raises(ZeusError, match=message):
        ask(fast)


def test_a_changed_weight_of_one_of_them_is_refused(bundle, pipeline):
    weight = next(p for name, p in pipeline.unet.named_parameters() if "lora_A.style" in name)
    with accelerate(pipeline, 0, engine=bundle, adapter={"ink": 0.6, "style": 0.4}) as fast:
        before = weight.detach().clone()
        try:
            weight.data[0, 0] += 1e-6
            with pytest.raises(ZeusError, match="adapters: got other weights or scales"):
                ask(fast)
        finally:
            weight.data.copy_(before)
        ask(fast)


def test_the_engine_alone_may_have_the_adapters(bundle, pipeline):
    plain = FAMILIES["sd15"].make()
    expected = ask(pipeline)
    with accelerate(plain, 0, engine=bundle, adapter={"ink": 0.6, "style": 0.4}, adds_adapter=True) as fast:
        assert (ask(fast) - expected).norm() < 1e-4 * expected.norm()
        weight = plain.unet.conv_in.weight
        weight.data[0, 0, 0, 0] += 1e-3
        with pytest.raises(ZeusError, match="engine: got a unet whose weights have the digest"):
            ask(fast)
    with (
        accelerate(pipeline, 0, engine=bundle, adapter="ink", adds_adapter=True) as fast,
        pytest.raises(ZeusError, match="expected no adapter, as in the engine"),
    ):
        ask(fast)
