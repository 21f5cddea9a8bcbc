"""LoRA files beside a bundle: its engine with one equals the pipeline with it, and is exchanged without an export."""

import numpy as np
import pytest
import torch
from lora_files import make, save, save_kohya
from pipelines import FAMILIES
from safetensors.torch import load_file, save_file

from zeus_trt.errors import ZeusError
from zeus_trt.export import add_adapter
from zeus_trt.runtime import Bundle, Session, accelerate
from zeus_trt.runtime.bundle.adapter import FACTORS
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.pipelines.weights_digest import digest_adapters

pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


def run(family, pipeline):
    torch.manual_seed(5)
    output = FAMILIES[family].run(pipeline, **FAMILIES[family].base)[0]
    return output if isinstance(output, torch.Tensor) else torch.from_numpy(np.stack([np.asarray(p) for p in output]))


def run_engine(family, pipeline, bundle, adapter=None):
    with accelerate(pipeline, 0, engine=Session(bundle, backend="onnxruntime", adapter=adapter)) as fast:
        return run(family, fast)


@pytest.fixture(scope="module")
def ink(tmp_path_factory):
    """A pipeline with the adapter ink at 0.5, and its file."""
    pipeline, _ = make("sd15")
    return pipeline, save(pipeline, tmp_path_factory.mktemp("ink"))


@pytest.fixture(scope="module")
def bundle(family_bundle, ink):
    """A bundle of sd15 with ink at 0.5; tests leave it as it is."""
    return add_adapter(family_bundle("sd15"), ink[1], "ink", scale=0.5)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sdxl", "sd3", "flux", "wan")]


@pytest.mark.parametrize("family", ["sd15", *SLOW])
def test_the_engine_with_an_adapter_equals_the_pipeline_with_it_and_comes_back_to_the_bit(
    family, family_bundle, tmp_path
):
    stored = family_bundle(family)
    (first, _), (second, _) = make(family), make(family, "style", 0.8, targets=("to_k", "to_q"))
    add_adapter(stored, save(first, tmp_path / "a"), "ink", scale=0.5)
    both = add_adapter(Bundle.open(stored.path), save(second, tmp_path / "b", "style"), "style", scale=0.8)
    assert both.adapters == ("ink", "style")
    made = {}
    for name, pipeline in (("ink", first), ("style", second), ("again", first)):
        adapter = "ink" if name == "again" else name
        with accelerate(pipeline, 0) as eager:
            expected = run(family, eager)
        made[name] = run_engine(family, pipeline, both, adapter)
        assert (made[name] - expected).norm() < 1e-4 * expected.norm()
    assert torch.equal(made["ink"], made["again"])
    assert (made["ink"] - made["style"]).norm() > 1e-3 * made["ink"].norm()
    plain = FAMILIES[family].make()
    assert torch.equal(run_engine(family, plain, both.with_adapter(None)), run_engine(family, plain, stored.path))


def test_a_bundle_knows_its_adapters_by_digest(bundle, ink):
    pipeline, _ = ink
    assert bundle.adapters == ("ink",)
    assert (bundle.adapter.name, bundle.adapter.scale) == ("ink", 0.5)
    assert bundle.adapter.sha256 == digest_adapters(pipeline.unet, bundle.manifest.graphs[0])
    with Session(bundle.path, adapter="ink") as session, Session(bundle.path) as plain:
        assert (session.engine.adapter, plain.engine.adapter) == (bundle.adapter.sha256, "")
        assert "with ink" in repr(session)
        with pytest.raises(ZeusError, match="engine: got one with the adapter none; expected "):
            Session(bundle, engine=plain.engine)
        with pytest.raises(ZeusError, match=r"engine: got one with the adapter \w{12}; expected none"):
            Session(bundle.path, engine=session.engine)
        Session(bundle.path, engine=session.engine, adapter="ink")
    with pytest.raises(ZeusError, match="adapter: got 'other' for a bundle with ink; expected one that it holds"):
        Session(bundle.path, adapter="other")


def test_a_twin_asks_for_the_adapter_that_its_pipeline_has(bundle, ink):
    pipeline, _ = ink
    with accelerate(pipeline, 0, engine=bundle.path, adapter="ink") as fast:
        run("sd15", fast)
    with accelerate(pipeline, 0, engine=bundle.path) as fast, pytest.raises(ZeusError, match=r"got ink at 0\.5"):
        run("sd15", fast)
    plain = FAMILIES["sd15"].make()
    with accelerate(plain, 0, engine=bundle) as fast, pytest.raises(ZeusError, match=r"expected ink at 0\.5"):
        run("sd15", fast)
    with pytest.raises(ZeusError, match="adapter: got 'ink' beside no engine"):
        accelerate(plain, 0, adapter="ink")
    session = Session(bundle.path)
    with pytest.raises(ZeusError, match="adapter: got 'ink' beside a session without it"):
        accelerate(plain, 0, engine=session, adapter="ink")


def test_kohyas_names_and_bare_ones_make_the_same_weights(family_bundle, bundle, ink, tmp_path):
    import peft

    pipeline, _ = ink
    bare = {
        key: value.contiguous()
        for key, value in peft.get_peft_model_state_dict(pipeline.unet, adapter_name="ink").items()
    }
    save_file({f"{key}": value for key, value in bare.items()}, tmp_path / "bare.safetensors")
    kohya = save_kohya(pipeline, tmp_path / "kohya.safetensors")
    one = add_adapter(family_bundle("sd15"), kohya, "ink", scale=0.5)
    two = add_adapter(
        one, tmp_path / "bare.safetensors", "halved"
    )  # without alpha: as alpha = r, so that 1 is 0.5 * 4 / 2
    expected, stored = fuse(bundle), [fuse(one), fuse(two)]
    for weights in stored:
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name].value, expected[name].value) for name in expected)
    assert one.adapter.sha256 == bundle.adapter.sha256


@pytest.mark.parametrize("kind", ["conv", "bias", "lokr", "half"])
def test_other_kinds_of_adapters(kind, family_bundle, tmp_path):
    import peft

    if kind == "lokr":
        pipeline = FAMILIES["sd15"].make()
        config = peft.LoKrConfig(r=2, alpha=4, target_modules=["to_q"], init_weights=False)
        pipeline.unet.add_adapter(config, "ink")
        pipeline.unet.set_adapters("ink", 0.5)
    else:
        targets = ("conv1", "proj_in", "to_q") if kind == "conv" else ("linear_1",) if kind == "bias" else ("to_q",)
        pipeline, _ = make("sd15", targets=targets, lora_bias=kind == "bias")
    if kind == "bias":
        for name, parameter in pipeline.unet.named_parameters():
            if "lora_B.ink.bias" in name:
                parameter.data = torch.randn(parameter.shape)
    file = save(pipeline, tmp_path)
    if kind == "half":
        save_file({key: value.half() for key, value in load_file(file).items()}, file, read_metadata(file))
        pipeline.unet.delete_adapters("ink")
        pipeline.load_lora_weights(file, adapter_name="ink")
        pipeline.set_adapters("ink", 0.5)
    stored = add_adapter(family_bundle("sd15"), file, "ink", scale=0.5)
    factors = load_file(stored.path / "adapters" / "ink" / FACTORS)
    assert {value.dtype for value in factors.values()} == {torch.float16 if kind == "half" else torch.float32}
    with accelerate(pipeline, 0) as eager:
        expected = run("sd15", eager)
    assert (run_engine("sd15", pipeline, stored) - expected).norm() < 1e-4 * expected.norm()


def read_metadata(file):
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return opened.metadata()


def edit(file, change):
    weights = load_file(file)
    change(weights)
    save_file(weights, file, read_metadata(file))


def rename(weights, old, new):
    for key in [*weights]:
        weights[key.replace(old, new)] = weights.pop(key)


def cut(weights):
    key = next(key for key in weights if "lora_A" in key)
    weights[key] = weights[key][:, :-1].contiguous()


def drop(weights):
    del weights[next(key for key in weights if "lora_B" in key)]


BROKEN = {
    "an unknown layer": (lambda weights: rename(weights, "attn1.to_q", "attn1.to_z"), "with .*to_z"),
    "another part": (
        lambda weights: weights.update({"vae.conv.lora_A.weight": torch.ones(2, 2)}),
        "with weights of vae",
    ),
    "text encoders only": (lambda weights: rename(weights, "unet.", "text_encoder."), "no weights of the unet"),
    "a weight that is no factor": (lambda weights: weights.update({"unet.conv_in.weight": torch.ones(2)}), "conv_in"),
    "a wrong shape": (cut, "does not fit a UNet2DConditionModel|size|shape"),
    "half of a pair": (drop, "without .*lora_B|does not fit"),
    "a DoRA": (lambda weights: weights.update({"unet.to_q.lora_magnitude_vector": torch.ones(2)}), "a DoRA"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(change, message, bundle, ink, tmp_path):
    file = tmp_path / "changed.safetensors"
    file.write_bytes(ink[1].read_bytes())
    edit(file, change)
    before = bundle.manifest.to_json()
    with pytest.raises(ZeusError, match=message):
        add_adapter(bundle, file, "other")
    assert Bundle.open(bundle.path).manifest.to_json() == before
    assert not [path for path in bundle.path.iterdir() if path.name.startswith(".")]


def test_a_file_that_does_not_exist_and_a_folder_are_named(bundle, tmp_path):
    for file in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(ZeusError, match=r"expected a .safetensors file that exists. Check the path"):
            add_adapter(bundle, file, "other")
