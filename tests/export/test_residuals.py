"""Denoisers that read what a ControlNet makes at each step: exported with these tensors as inputs."""

import diffusers
import pytest
import torch
from tiny_images import build_flux, build_sd3, run_flux
from tiny_inputs import rand
from tiny_unets import build_sd, build_sdxl, run_sd, run_sdxl, tiny_vae

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Settings
from zeus_trt.runtime import Session, accelerate

BASE = {"batch": 2, "height": 64, "width": 96, "prompt": 7}
VARIED = {"batch": 3, "height": 128, "width": 160}
LEVELS = {"conditioning_embedding_out_channels": (4,) * 4}


def build(family):
    torch.manual_seed(0)
    pipeline = {"sd": build_sd, "sdxl": build_sdxl, "sd3": build_sd3, "flux": build_flux}[family]()
    parts = {**pipeline.components, "vae": tiny_vae()}
    parts["vae"].register_to_config(shift_factor=0.0)
    if family == "sd":
        controlnet = diffusers.ControlNetModel.from_unet(pipeline.unet, **LEVELS)
        pipeline = diffusers.StableDiffusionControlNetPipeline(
            **parts, controlnet=controlnet, requires_safety_checker=False
        )
    elif family == "sdxl":
        controlnet = diffusers.ControlNetModel.from_unet(pipeline.unet, **LEVELS)
        pipeline = diffusers.StableDiffusionXLControlNetPipeline(**parts, controlnet=controlnet, add_watermarker=False)
    elif family == "sd3":
        controlnet = diffusers.SD3ControlNetModel.from_transformer(
            pipeline.transformer, num_layers=1, num_extra_conditioning_channels=0
        )
        pipeline = diffusers.StableDiffusion3ControlNetPipeline(**parts, controlnet=controlnet)
    else:
        controlnet = diffusers.FluxControlNetModel.from_transformer(
            pipeline.transformer, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2
        )
        pipeline = diffusers.FluxControlNetPipeline(**parts, controlnet=controlnet)
    for module in (controlnet, pipeline.components.get("unet"), pipeline.components.get("transformer")):
        for parameter in module.parameters() if module else ():
            if parameter.ndim >= 2 and not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_of(family, steps=3):
    own = {"sd": run_sd, "sdxl": run_sdxl, "sd3": run_sdxl, "flux": run_flux}[family]
    name = "image" if family in ("sd", "sdxl") else "control_image"

    def run(pipeline, *, seed=0, **setting):
        image = rand(seed + 4, setting["batch"], 3, setting["height"], setting["width"]).sigmoid()
        torch.manual_seed(0)
        call = lambda **given: pipeline(**{**given, "num_inference_steps": steps})  # noqa: E731
        return own(call, seed=seed, **setting, **{name: image})[0]

    return run


def count_calls(module, calls):
    return module.register_forward_hook(lambda *_: calls.append(1))


def test_what_a_controlnet_makes_is_an_input():
    pipeline = build("sd")
    before = [type(part) for part in pipeline.components.values()], dict(vars(pipeline))
    captured = capture(pipeline, Settings(BASE, {}, {"seed": 1}, run_of("sd")))
    roles = {spec.name: spec.role for spec in captured.inputs}
    residuals = [name for name in roles if "residual" in name]
    assert [spec.name for spec in captured.inputs[:2]] == ["sample", "timestep"]
    assert len(residuals) == 5
    assert {roles[name] for name in residuals} == {"conditioning"}
    assert "controlnet" in captured.border.unsteppable
    assert before == ([type(part) for part in pipeline.components.values()], dict(vars(pipeline)))


@pytest.mark.parametrize("family", ["sd", "flux"])
def test_a_controlnet_runs_at_full_steps_only(family):
    pipeline, calls = build(family), []
    with count_calls(pipeline.controlnet, calls), accelerate(pipeline, ratio=2) as fast:
        run_of(family, steps=8)(fast, **{**BASE, "batch": 1})
    assert fast.report.nfe == len(calls) < 8


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3", "flux"])
def test_the_engine_stands_for_the_denoiser_beside_its_controlnet(family, tmp_path):
    pipeline = build(family)
    bundle = export_model(
        pipeline, tmp_path / "bundle", settings=Settings(BASE, VARIED, {"seed": 1}, run_of(family)), steps=(),
        unseen=[{"height": 96, "width": 128}],
    )  # fmt: skip
    assert max(record.relative_error for record in bundle.manifest.graphs[0].verification) < 1e-4
    setting = {"batch": 1, "height": 96, "width": 64, "prompt": 7}
    run, calls = run_of(family), []
    expected = run(pipeline, **setting)
    with count_calls(pipeline.controlnet, calls), accelerate(pipeline, ratio=0, engine=bundle) as twin:
        made = run(twin, **setting)
    assert len(calls) == 1  # to compare with: its engine answers the others
    assert float((made - expected).norm() / expected.norm()) < 1e-3
    with pytest.raises(ZeusError, match=r"no solver can step.*controlnet"), Session(bundle) as session:
        session.generate()
