"""A diffusers pipeline whose plan calls both graphs of its bundle."""

import shutil

import pytest
import torch
from diffusers import DiffusionPipeline

from zeus_trt import quantize
from zeus_trt.errors import ZeusError
from zeus_trt.runtime import accelerate

PLAN = "FFXQRXQF"
pytestmark = pytest.mark.usefixtures("one_thread")


def run(pipeline, bundle, plan):
    """The latents after every step, and the report."""
    seen = []
    with accelerate(pipeline, plan=plan, engine=bundle, on_step=lambda step: seen.append(step.latents.clone())) as fast:
        noise = torch.Generator().manual_seed(0)
        fast("a cat", num_inference_steps=len(plan), generator=noise, output_type="latent")
        return seen, fast.report


def test_int8_answers_the_q_steps(tiny_pipeline, export_tiny_pipeline, tmp_path):
    """As velocities, outputs of random weights keep the latents small: see ``test_quantized_families``."""
    model = shutil.copytree(tiny_pipeline, tmp_path / "model")
    pipeline = DiffusionPipeline.from_pretrained(model)
    pipeline.scheduler.register_to_config(prediction_type="v_prediction")
    pipeline.scheduler.save_pretrained(model / "scheduler")
    bundle, prompts = export_tiny_pipeline().path, tmp_path / "prompts.txt"
    prompts.write_text("a cat\na dog\n")
    full, _ = run(pipeline, bundle, PLAN.replace("Q", "F"))
    with pytest.raises(ZeusError, match=r"which has no quantized graph.*zeus-trt quantize"):
        run(pipeline, bundle, PLAN)
    quantize(bundle, model=model, prompts=prompts, steps=4, num_trajectories=1, num_held_out=1, min_psnr=10)
    mixed, report = run(pipeline, bundle, PLAN)
    assert report.plan == PLAN
    first = PLAN.index("Q")
    assert [torch.equal(*pair) for pair in zip(mixed, full, strict=True)] == [step < first for step in range(len(PLAN))]
    again, _ = run(pipeline, bundle, PLAN.replace("Q", "F"))
    assert all(map(torch.equal, again, full))
