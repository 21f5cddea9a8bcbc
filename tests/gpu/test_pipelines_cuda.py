"""accelerate() on a GPU: nothing skipped is the pipeline to the bit, and skipping is what it is on a CPU."""

import pytest
import torch
from diffusers.utils import is_transformers_available
from tiny_images import build_dit
from tiny_inputs import text
from tiny_unets import build_sd

from zeus_trt.runtime import accelerate


def run_sd(pipeline, device):
    prompts = {name: value.to(device) for name, value in text(2, 7, seed=0).items()}
    return pipeline(
        **prompts, height=64, width=96, num_inference_steps=12, output_type="latent", guidance_scale=5.0,
        generator=torch.Generator().manual_seed(0),
    ).images  # fmt: skip


def run_dit(pipeline, device):
    images = pipeline(
        class_labels=[3, 7], num_inference_steps=12, output_type="np", generator=torch.Generator().manual_seed(0)
    ).images
    return torch.from_numpy(images)


PIPELINES = {"sd": (build_sd, run_sd), "dit": (build_dit, run_dit)}


@pytest.fixture(params=PIPELINES)
def pipeline(request):
    """A tiny random pipeline on the CPU, and what runs it."""
    build, run = PIPELINES[request.param]
    if request.param == "sd" and not is_transformers_available():
        pytest.skip("diffusers' StableDiffusionPipeline needs transformers")
    torch.manual_seed(0)
    made = build()
    for part in made.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
            for weight in part.parameters():  # some start at zero, which would hide what they multiply
                if weight.ndim >= 2 and not weight.any():
                    torch.nn.init.normal_(weight, std=0.1)
    made.set_progress_bar_config(disable=True)
    return made, run


def test_a_pipeline_and_its_twin(pipeline, device):
    pipeline, run = pipeline
    with accelerate(pipeline, ratio=3) as fast:
        on_cpu = run(fast, "cpu")
    pipeline.to(device)
    own = run(pipeline, device)
    with accelerate(pipeline, ratio=0) as same:
        assert torch.equal(run(same, device), own)
    with accelerate(pipeline, ratio=3, drift_threshold=float("inf")) as fast:
        got = run(fast, device)
    assert fast.report.nfe == 7
    assert len(fast.report.drift) == 2
    assert not torch.equal(got, own)
    assert (got.cpu() - on_cpu).norm() < 1e-2 * on_cpu.norm()
    torch.testing.assert_close(run(pipeline, device), own, rtol=0, atol=0)  # the given one is as it was
