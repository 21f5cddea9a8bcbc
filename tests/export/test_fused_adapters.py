"""Adapters of peft in an export: in the base weights, under their names; the engine equals the pipeline."""

import json

import numpy as np
import onnx
import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.export import export_model
from zeus_trt.export.adapters import fuse_adapters
from zeus_trt.runtime import OnnxRuntimeEngine, Session, accelerate
from zeus_trt.runtime.pipelines.weights_digest import digest_weights

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


def make(family):
    pipeline = family.make()
    name = "unet" if hasattr(pipeline, "unet") else "transformer"
    torch.manual_seed(1)
    for adapter in ("ink", "style", "unused"):
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["to_q", "to_v"], init_lora_weights=False)
        getattr(pipeline, name).add_adapter(config, adapter)
    getattr(pipeline, name).set_adapters(["ink", "style"], [0.5, 0.8])
    return pipeline, getattr(pipeline, name)


def run(family, pipeline):
    torch.manual_seed(5)
    output = family.run(pipeline, **family.base)[0]
    return output if isinstance(output, torch.Tensor) else torch.from_numpy(np.stack([np.asarray(p) for p in output]))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in ("sdxl", "sd3", "flux", "wan")])
def test_the_engine_equals_the_pipeline_with_its_adapters(name, tmp_path):
    family = FAMILIES[name]
    (pipeline, denoiser), plain = make(family), family.make()
    names = {*denoiser.state_dict()}
    bundle = export_model(pipeline, tmp_path / "b", settings=family.settings, unseen=family.unseen, steps=(3,))
    assert {*denoiser.state_dict()} == names
    manifest = bundle.manifest
    assert manifest.adapters == {"ink": 0.5, "style": 0.8}
    assert (manifest.weights_sha256, manifest.adapters_sha256) == digest_weights(denoiser)

    graph = bundle.graph()
    held = {each.name for each in onnx.load(graph, load_external_data=False).graph.initializer}
    mapped = json.loads(graph.with_name("parameters.json").read_text())["parameters"]
    assert not [each for each in (*held, *mapped) if "lora" in each or "base_layer" in each]
    without = plain.unet if hasattr(plain, "unet") else plain.transformer
    assert mapped.keys() <= without.state_dict().keys()
    assert any("to_q" in each for each in mapped)

    session = Session(bundle, engine=OnnxRuntimeEngine(graph, num_threads=1))
    with accelerate(pipeline, 0, engine=session) as fast, accelerate(pipeline, 0) as eager:
        made, expected, bare = (run(family, each) for each in (fast, eager, plain))
    assert (made - expected).norm() < 1e-4 * expected.norm()
    assert (bare - expected).norm() > 1e-2 * expected.norm()


@pytest.mark.parametrize("state", ["active", "fused", "disabled"])
def test_a_fused_copy_equals_the_module_which_is_not_touched(state):
    pipeline, unet = make(FAMILIES["sd15"])
    if state == "fused":
        pipeline.fuse_lora()
    elif state == "disabled":
        pipeline.disable_lora()
    before = {name: tensor.clone() for name, tensor in unet.state_dict().items()}
    given = torch.randn(2, 4, 8, 8), torch.tensor(3.0), torch.randn(2, 7, 16)
    with torch.no_grad():
        expected, copied = unet(*given)[0], fuse_adapters(unet)
        torch.testing.assert_close(copied(*given)[0], expected, rtol=1e-5, atol=1e-5)
    assert copied.state_dict().keys() == FAMILIES["sd15"].make().unet.state_dict().keys()
    after = unet.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
