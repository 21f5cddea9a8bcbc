"""Denoisers that read a picture through an IP-Adapter or a T2I-Adapter, which run once before the loop."""

import diffusers
import pytest
import torch
from test_networks import off
from tiny_inputs import rand
from tiny_unets import build_sd, run_sd, tiny_vae

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Settings
from zeus_trt.runtime import accelerate

BASE = {"batch": 2, "height": 64, "width": 96, "prompt": 7}
SETTING = {**BASE, "batch": 3}
TOKENS, WIDTH = 4, 8


def add_ip_adapter(unet):
    """Random weights of an IP-Adapter, in the form of its authors' files."""
    cross = unet.config.cross_attention_dim
    projection = {
        "proj.weight": torch.randn(TOKENS * cross, WIDTH), "proj.bias": torch.zeros(TOKENS * cross),
        "norm.weight": torch.ones(cross), "norm.bias": torch.zeros(cross),
    }  # fmt: skip
    layers = {}
    for number, name in enumerate(name for name in unet.attn_processors if "attn2" in name):
        shape = unet.get_submodule(name.removesuffix(".processor")).to_k.weight.shape
        for kind in ("k", "v"):
            layers[f"{2 * number + 1}.to_{kind}_ip.weight"] = torch.randn(shape)
    unet._load_ip_adapter_weights([{"image_proj": projection, "ip_adapter": layers}], low_cpu_mem_usage=False)


def run_ip(pipeline, *, seed=0, **setting):
    embeds = rand(seed + 7, 1, 1, WIDTH)
    torch.manual_seed(0)
    both = torch.cat([torch.zeros_like(embeds), embeds])
    return run_sd(pipeline, seed=seed, ip_adapter_image_embeds=[both], **setting)[0]


def build_ip():
    torch.manual_seed(0)
    pipeline = build_sd()
    add_ip_adapter(pipeline.unet.eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_t2i():
    torch.manual_seed(0)
    parts = {**build_sd().components, "vae": tiny_vae()}
    del parts["image_encoder"]
    channels = list(parts["unet"].config.block_out_channels)
    adapter = diffusers.T2IAdapter(channels=channels, num_res_blocks=1, downscale_factor=8)
    pipeline = diffusers.StableDiffusionAdapterPipeline(**parts, adapter=adapter, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_t2i(pipeline, *, seed=0, **setting):
    image = rand(seed + 4, setting["batch"], 3, setting["height"], setting["width"]).sigmoid()
    torch.manual_seed(0)
    return run_sd(pipeline, seed=seed, image=image, **setting)[0]


@pytest.mark.parametrize(("build", "run", "found"), [(build_ip, run_ip, "image_embeds"), (build_t2i, run_t2i, "intra")])
def test_what_an_adapter_makes_is_conditioning_of_a_graph_that_solvers_step(build, run, found):
    captured = capture(build(), Settings(BASE, {}, {"seed": 1}, run))
    assert {spec.role for spec in captured.inputs if found in spec.name} == {"conditioning"}
    assert not captured.border.unsteppable
    assert not captured.beside


@pytest.mark.slow
@pytest.mark.parametrize(("build", "run"), [(build_ip, run_ip), (build_t2i, run_t2i)])
def test_the_engine_reads_what_an_adapter_makes(build, run, tmp_path):
    pipeline = build()
    bundle = export_model(
        pipeline, tmp_path / "bundle", settings=Settings(BASE, {"batch": 3}, {"seed": 1}, run), steps=()
    )
    assert max(record.relative_error for record in bundle.manifest.graphs[0].verification) < 1e-4
    expected = run(pipeline, **SETTING)
    with accelerate(pipeline, ratio=0, engine=bundle) as twin:
        assert off(run(twin, **SETTING), expected) < 1e-4
        assert off(run(twin, seed=1, **SETTING), run(pipeline, seed=1, **SETTING)) < 1e-4
        if build is build_ip:
            pipeline.set_ip_adapter_scale(0.5)  # baked into the graph
            with pytest.raises(ZeusError, match="changed since both agreed: undo that, or export"):
                run(twin, **SETTING)
