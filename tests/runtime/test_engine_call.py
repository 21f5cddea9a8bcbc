"""An engine in a denoiser's place: what is checked before its call, and after a change of the denoiser."""

import dataclasses

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Graph, Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.pipelines.engine_call import CheckedCall, EngineCall
from zeus_trt.runtime.pipelines.module_state import read_adapters, read_state
from zeus_trt.runtime.pipelines.weights_digest import digest_weights

pytestmark = pytest.mark.usefixtures("one_thread")


class Processor:
    """A double of an attention processor; with ``keeps`` it stores a map of each call."""

    def __init__(self, keeps=False, scale=1.0):
        self.store, self.keeps, self.scale = {"maps": []}, keeps, scale

    def __call__(self, value):
        if self.keeps:
            self.store["maps"] = [torch.softmax(value, -1)]
        return value * self.scale


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.processor = torch.nn.Linear(4, 4), Processor()

    def forward(self, value):
        return self.processor(self.linear(value))


class Net(torch.nn.Module):
    """A double of a denoiser."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.calls = Attention(), 0

    def forward(self, sample, timestep, encoder_hidden_states):
        self.calls += 1
        return (self.attention(sample) + encoder_hidden_states.mean((1, 2))[:, None, None, None],)


class Lora(torch.nn.Module):
    """A double of a LoRA layer: the attributes that peft's have."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.scaling, self.lora_alpha, self.r = {"ink": 2.0 * weight}, {"ink": 8}, {"ink": 4}
        self.active_adapters, self.merged_adapters, self.disable_adapters = ["ink"], [], False

    def forward(self, value):
        return value


def make_manifest(**changes):
    axes = ("batch", 4, "height", 4)
    fields = {
        "model": "toy", "component": "unet", "denoiser_class": "Net", "denoiser_config": {"in_channels": 4},
        "weights_sha256": "", "prediction_type": "epsilon",
        "inputs": (
            TensorSpec("sample", "float32", axes, "latents"), TensorSpec("timestep", "float32", ("batch",), "timestep"),
            TensorSpec("encoder_hidden_states", "float32", ("batch", 7, 8)),
        ),
        "output": TensorSpec("model_output", "float32", axes, "output"),
        "symbols": (
            SymbolSpec("batch", (2, 3)), SymbolSpec("height", (8, 16), 4, 32, setting="height", unit="8"),
        ),
        "labels": None, "graphs": (Graph(Precision.FP32),), "versions": {},
    }  # fmt: skip
    return Manifest(**{**fields, **changes})


def give(height=8, width=4, tokens=7, batch=2, channels=4):
    return torch.ones(batch, channels, height, width), torch.tensor(9.0), torch.ones(batch, tokens, 8)


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def checked(net):
    twin = Net()  # of the same weights: what the engine was made of
    twin.load_state_dict(net.state_dict())
    manifest = make_manifest(weights_sha256=digest_weights(twin)[0])
    engine = EngineCall(lambda **inputs: twin(**inputs)[0], manifest, Net, pixels=8)
    return CheckedCall(engine, net)


def run(checked):
    checked.expect_change()
    with torch.no_grad():
        return [checked(*give()) for _ in range(3)]


CHANGES = {
    "weights in place": lambda net: net.attention.linear.weight.data.mul_(1.1),
    "a part of the weights in place": lambda net: net.attention.linear.weight.data[1:2, 2].add_(1.0),
    "weights in place, by numpy": lambda net: net.attention.linear.weight.detach().numpy()[3].fill(0.5),
    "other weights": lambda net: setattr(net.attention.linear.weight, "data", torch.ones(4, 4)),
    "another layer": lambda net: setattr(net.attention, "linear", torch.nn.Linear(4, 4)),
    "another processor": lambda net: setattr(net.attention, "processor", Processor(scale=1.1)),
    "a processor's scale": lambda net: setattr(net.attention.processor, "scale", 0.9),
    "a hook": lambda net: net.attention.register_forward_hook(lambda module, given, output: output * 1.1),
    "another forward": lambda net: setattr(net.attention, "forward", lambda value: value),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_runs_is_seen(checked, net, change):
    run(checked)
    run(checked)
    assert net.calls == 1  # one comparison, as nothing changed
    change(net)
    with pytest.raises(ZeusError, match=r"off the pipeline's own denoiser.* changed since both agreed"):
        run(checked)
    with pytest.raises(ZeusError, match="off the pipeline's own denoiser"):
        run(checked)


def test_a_change_that_is_undone_is_no_change(checked, net):
    run(checked)
    net.attention.linear.weight.data.mul_(2)
    with pytest.raises(ZeusError):
        run(checked)
    net.attention.linear.weight.data.div_(2)
    run(checked)


@pytest.mark.parametrize("compares", [True, False])
def test_adapters_are_compared_by_name(net, compares):
    twin = Net()
    lora = Lora()
    net.attention.add_module("lora", lora)

    def call(**adapters):
        weights, own = digest_weights(net)
        manifest = make_manifest(adapters=adapters, weights_sha256=weights, adapters_sha256=own)
        engine = EngineCall(lambda **inputs: twin(**inputs)[0], manifest, Net)
        return run(CheckedCall(engine, net, compares))

    with pytest.raises(ZeusError, match=r"adapters: got ink at 1 on the pipeline's unet; expected no adapter"):
        call()
    assert call(ink=1.0)
    with pytest.raises(ZeusError, match=r"got ink at 1 .* expected ink at 0.5"):
        call(ink=0.5)
    lora.disable_adapters = True
    assert call()
    with pytest.raises(ZeusError, match=r"got no adapter .* expected ink at 1.* Set these"):
        call(ink=1.0)
    lora.merged_adapters = ["ink"]  # fused
    assert call(ink=1.0)
    lora.scaling["ink"] = 0.02
    assert read_adapters(net) == {"ink": 0.01}
    with pytest.raises(ZeusError, match=r"got ink at 0\.01"):
        call()


def test_a_denoiser_that_keeps_maps_is_refused(checked, net):
    net.attention.processor.keeps = True
    with pytest.raises(ZeusError, match=r"keeps tensors of each call.* Run this pipeline without an engine"):
        run(checked)


def test_an_input_whose_gradient_is_asked_for_is_refused(checked):
    sample, *others = give()
    with pytest.raises(ZeusError, match="gradient"):
        checked(sample.requires_grad_(), *others)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"height": 10}, r"height: got 10 \(80 pixels\); expected a multiple of 4 \(32 pixels\)"),
        ({"height": 64}, r"height: got 64 \(512 pixels\); .* up to 32 \(256 pixels\)"),
        ({"width": 8}, r"sample: got 64 pixels from the pipeline; expected 32, .* Pass width=32, or export"),
        ({"tokens": 9}, r"encoder_hidden_states: got 9 tokens of text .* expected 7, which is fixed"),
        ({"channels": 9}, r"sample: got 9 channels from the pipeline; expected 4"),
    ],
)
def test_sizes_are_checked_before_the_engine(sizes, message):
    def never(**inputs):
        raise AssertionError("the engine was called")

    with pytest.raises(ZeusError, match=message):
        EngineCall(never, make_manifest(), Net, pixels=8)(*give(**sizes))


def test_rows_that_disagree_are_refused(checked):
    with pytest.raises(ZeusError, match=r"encoder_hidden_states: got 3 for batch; expected 2"):
        checked(*give()[:2], torch.ones(3, 7, 8))


def test_one_row_serves_all_rows():
    def engine(**inputs):
        assert inputs["encoder_hidden_states"].shape == (2, 7, 8)
        return inputs["sample"] * inputs["encoder_hidden_states"].mean()

    sample, timestep, text = give()
    answer = EngineCall(engine, make_manifest(), Net)(sample, timestep, 3 * text[:1])  # as LongCat's unguided branch
    assert torch.equal(answer[0], 3 * sample)


def test_the_state_of_a_module_reads_few_numbers():
    net = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(20)))
    state = read_state(net)
    assert len(state[2]) == 20 * 2 * (8 + 1)
    assert read_state(net) == state


@dataclasses.dataclass
class Prediction:
    predicted_image_embedding: torch.Tensor


def predict(self, sample, timestep, encoder_hidden_states) -> Prediction | tuple:
    return Prediction(sample)


def predict_unknown(self, sample, timestep, encoder_hidden_states) -> "NotImported | tuple":  # noqa: F821
    return (sample,)


def test_a_bare_answer_is_the_tensor_itself(net):
    kind = type("Net", (Net,), {"forward": lambda self, **inputs: Net.forward(self, **inputs)[0]})
    call = EngineCall(lambda **inputs: 2 * inputs["sample"], make_manifest(is_bare=True), Net)
    assert torch.equal(call(*give()), 2 * give()[0])
    manifest = make_manifest(is_bare=True, weights_sha256=digest_weights(net)[0])
    assert "is_bare" in manifest.to_json()
    assert "is_bare" not in make_manifest().to_json()
    bare = kind()
    bare.load_state_dict(net.state_dict())
    checked = CheckedCall(EngineCall(lambda **inputs: net(**inputs)[0], manifest, Net), bare)
    named = dict(zip(("sample", "timestep", "encoder_hidden_states"), give(), strict=True))
    with torch.no_grad():
        assert torch.equal(checked(**named), bare(**named))


@pytest.mark.parametrize(
    ("forward", "name"),
    [(predict, "predicted_image_embedding"), (predict_unknown, "sample"), (Net.forward, "sample")],
)
def test_an_output_is_read_by_its_name_and_first(forward, name):
    kind = type("Net", (Net,), {"forward": forward})
    answer = EngineCall(lambda **inputs: 2 * inputs["sample"], make_manifest(), kind)(*give())
    assert torch.equal(answer[0], 2 * give()[0])
    assert getattr(answer, name) is answer[0]
