"""Masks that a pipeline passes only for prompts of different lengths: Qwen-Image."""

import pytest
import torch
from tiny_inputs import text
from tiny_today import build_qwen

from zeus_trt.export import export_model
from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Settings
from zeus_trt.runtime import accelerate

BASE = {"batch": 2, "height": 64, "width": 96, "prompt": 6}
VARIED = {"batch": 3, "height": 128, "width": 160, "prompt": 8}
pytestmark = pytest.mark.usefixtures("one_thread")


def run(pipeline, *, batch, height, width, prompt, last=None, seed=0, **others):
    """The last prompt has so many tokens, the others all."""
    mask = torch.ones(batch, prompt, dtype=torch.int64)
    mask[-1, last:] = last is None  # of ones alone the pipeline makes None
    masks = {"prompt_embeds_mask": mask, "negative_prompt_embeds_mask": torch.ones_like(mask)}
    settings = {"num_inference_steps": 3, "output_type": "latent", **others}
    return pipeline(**text(batch, prompt, seed), **masks, height=height, width=width, **settings)


SETTINGS = Settings(BASE, VARIED, {"seed": 1}, run, {"last": 2})


@pytest.fixture(scope="module")
def pipeline():
    pipeline = build_qwen()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_a_mask_of_some_calls_is_an_input(pipeline):
    captured = capture(pipeline, SETTINGS)
    assert [*captured.masks.known] == ["encoder_hidden_states_mask"]
    (spec,) = (spec for spec in captured.inputs if "mask" in spec.name)
    assert (spec.axes, spec.dtype) == (("batch", "prompt"), "int64")
    assert captured.flatten(captured.arguments)[spec.name].all()


def test_without_prompts_that_differ_no_mask_is_found(pipeline):
    captured = capture(pipeline, Settings(BASE, VARIED, {"seed": 1}, run))
    assert not captured.masks.known
    assert not any("mask" in spec.name for spec in captured.inputs)


@pytest.mark.extra
def test_an_engine_takes_prompts_with_and_without_a_mask(pipeline, tmp_path):
    bundle = export_model(pipeline, tmp_path / "bundle", settings=SETTINGS, steps=())
    assert bundle.manifest.masks == ("encoder_hidden_states_mask",)
    for asked in ({}, {"last": 3}, {"last": 4, "prompt": 7}, {"batch": 1}):
        setting = {**BASE, **asked, "generator": torch.Generator().manual_seed(0)}
        expected = run(pipeline, **setting).images
        setting["generator"].manual_seed(0)
        with accelerate(pipeline, 0, engine=bundle) as fast:
            assert (run(fast, **setting).images - expected).norm() < 1e-5 * expected.norm()
