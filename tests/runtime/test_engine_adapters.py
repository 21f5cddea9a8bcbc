"""An engine instead of a denoiser with adapters: any change of them, of weights or of precision is refused."""

from dataclasses import replace

import diffusers
import pytest
import torch
from lora_files import save
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export import add_adapter, export_model
from zeus_trt.runtime import accelerate
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.pipelines.weights_digest import digest_weights

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
FAMILY = FAMILIES["sd15"]
EMBEDS = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))


def make(size=1e-4, **pipeline):
    """A pipeline with the adapter ink at 0.5; at this size of its weights it moves no output by a tolerance."""
    made = FAMILY.make()
    made.scheduler = diffusers.EulerDiscreteScheduler()
    made.unet.add_adapter(peft.LoraConfig(r=2, lora_alpha=4, target_modules=["to_q", "to_v"]), "ink")
    noise = torch.Generator().manual_seed(5)
    for name, parameter in made.unet.named_parameters():
        if "lora_" in name:
            parameter.data = size * torch.randn(parameter.shape, generator=noise)
    made.set_adapters("ink", 0.5)
    return made


def ask(pipeline):
    return pipeline(
        prompt_embeds=EMBEDS[:1], negative_prompt_embeds=EMBEDS[1:], height=64, width=64, num_inference_steps=3,
        output_type="latent", generator=torch.Generator().manual_seed(0),
    ).images  # fmt: skip


@pytest.fixture(scope="module", params=[pytest.param("exported", marks=pytest.mark.extra), "stored"])
def bundle(request, cached_bundle, family_bundle, tmp_path_factory):
    """A bundle that was exported with the adapter active, and one without it that has the adapter beside its graph."""

    def export(path):
        export_model(make(), path, settings=FAMILY.settings, unseen=FAMILY.unseen, steps=(3,))

    if request.param == "exported":
        return Bundle.open(cached_bundle("sd15-adapter", export))
    file = save(make(), tmp_path_factory.mktemp("ink"))
    return add_adapter(family_bundle("sd15"), file, "ink", scale=0.5)


def add_another(pipeline):
    pipeline.unet.add_adapter(peft.LoraConfig(r=2, target_modules=["to_k"], init_lora_weights=False), "style")
    pipeline.set_adapters("style")


def change(pipeline, fragment, size=1e-6):
    with torch.no_grad():
        next(p for name, p in pipeline.unet.named_parameters() if fragment in name).view(-1)[0] += size


def fuse(pipeline):
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()


def scale_layers(pipeline):
    """Other scales of the same mean."""
    layers = [part for part in pipeline.unet.modules() if isinstance(getattr(part, "scaling", None), dict)]
    for layer, factor in zip(layers[:2], (0.9, 1.1), strict=True):
        layer.scaling["ink"] *= factor


CHANGES = {
    "set_adapters": (add_another, "adapters: got style at 1 .* expected ink at 0.5"),
    "disable_lora": (lambda pipeline: pipeline.disable_lora(), "adapters: got no adapter .* expected ink at 0.5"),
    "fuse and unload": (fuse, "adapters: got no adapter"),
    "fuse": (lambda pipeline: pipeline.fuse_lora(), "engine: got a unet whose weights have the digest"),
    "delete": (lambda pipeline: pipeline.delete_adapters("ink"), "adapters: got no adapter"),
    "scale by 1 %": (lambda pipeline: pipeline.set_adapters("ink", 0.505), "adapters: got ink at 0.505"),
    "scales of layers": (scale_layers, "adapters: got other weights or scales of ink at 0.5"),
    "an adapter's weight": (lambda pipeline: change(pipeline, "lora_A"), "adapters: got other weights or scales"),
    "a weight": (lambda pipeline: change(pipeline, "conv_in.weight"), "engine: got a unet whose weights"),
    "precision": (lambda pipeline: pipeline.unet.to(torch.bfloat16), "weights are in bf16 now"),
}


@pytest.mark.parametrize(("alter", "message"), CHANGES.values(), ids=CHANGES)
def test_a_change_that_moves_no_output_by_a_tolerance_is_refused(bundle, alter, message):
    pipeline = make()
    with accelerate(pipeline, 1, engine=bundle) as fast:
        ask(fast)
        alter(pipeline)
        for _ in range(2):  # again in the next run of the same twin
            with pytest.raises(ZeusError, match=message):
                ask(fast)
    with accelerate(pipeline, 1, engine=bundle) as fast, pytest.raises(ZeusError, match=message):
        ask(fast)


def test_what_was_exported_is_accepted_again(bundle):
    pipeline = make()
    with accelerate(pipeline, 0, engine=bundle) as fast:
        first = ask(fast)
        assert (first - ask(pipeline)).norm() < 1e-4 * first.norm()
        pipeline.set_adapters("ink", 0.505)
        with pytest.raises(ZeusError, match=r"ink at 0\.505"):
            ask(fast)
        pipeline.set_adapters("ink", 0.5)
        assert torch.equal(ask(fast), first)


def test_unfuse_is_refused_where_the_adapter_was_exported_fused(bundle):
    pipeline = make()
    pipeline.fuse_lora()
    weights, adapters = digest_weights(pipeline.unet)
    as_exported = {"weights_sha256": weights, "adapters_sha256": adapters}
    manifest = replace(bundle.fused_manifest, **as_exported)
    with accelerate(pipeline, 0, engine=replace(bundle, manifest=manifest, adapter=None)) as fast:
        ask(fast)
        pipeline.unfuse_lora()
        for _ in range(2):
            with pytest.raises(ZeusError, match="engine: got a unet whose weights have the digest"):
                ask(fast)
