"""Bundles of pipelines through our runtime: equal to the pipeline itself."""

import diffusers
import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import OnnxRuntimeEngine, Session


@pytest.fixture(scope="module")
def sd(family_bundle):
    """A tiny Stable Diffusion pipeline, and a session of its bundle."""
    bundle = family_bundle("sd15")
    return FAMILIES["sd15"].make(), Session(bundle, engine=OnnxRuntimeEngine(bundle.graph(), num_threads=1))


def embed(seed, batch=2):
    return torch.randn(batch, 7, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("scheduler", "guidance_scale", "size"),
    [
        (None, 1.0, (16, 24)),
        (None, 5.0, (20, 12)),
        ("EulerDiscreteScheduler", 1.0, (20, 12)),
        ("EulerDiscreteScheduler", 5.0, (16, 24)),
        ("UniPCMultistepScheduler", 1.0, (16, 24)),
        ("UniPCMultistepScheduler", 5.0, (20, 12)),
    ],
)
def test_a_full_run_is_the_pipelines_own(sd, scheduler, guidance_scale, size):
    pipeline, session = sd
    own = pipeline.scheduler
    if scheduler:
        pipeline.scheduler = getattr(diffusers, scheduler)()
        session = Session(session.bundle, engine=session.engine, scheduler=pipeline.scheduler)
    noise = torch.randn(2, 4, *size, generator=torch.Generator().manual_seed(3))
    scale = pipeline.vae_scale_factor
    try:
        expected = pipeline(
            prompt_embeds=embed(1), negative_prompt_embeds=embed(2), latents=noise.clone(), num_inference_steps=10,
            guidance_scale=guidance_scale, output_type="latent", height=size[0] * scale, width=size[1] * scale,
        )[0]  # fmt: skip
        settings = {"num_steps": 10, "guidance_scale": guidance_scale, "noise": noise}
        settings |= {"negative": {"encoder_hidden_states": embed(2)}}
        full = session.generate({"encoder_hidden_states": embed(1)}, plan=session.plan(10, 0), **settings)
        assert (full.latents - expected).norm() < 1e-4 * expected.norm()
        skipped = session.generate({"encoder_hidden_states": embed(1)}, plan=session.plan(10, 2), **settings)
        assert skipped.report.nfe < full.report.nfe
        assert torch.isfinite(skipped.latents).all()
    finally:
        pipeline.scheduler = own


def test_what_is_missing_is_named(sd):
    _, session = sd
    settings = {"plan": session.plan(10, 2), "num_steps": 10}
    with pytest.raises(ZeusError, match="height, width may vary"):
        session.generate({"encoder_hidden_states": embed(1)}, **settings)
    with pytest.raises(ZeusError, match=r"expected \['encoder_hidden_states'\]"):
        session.generate({}, **settings)
    noise = torch.zeros(2, 4, 8, 8)
    with pytest.raises(ZeusError, match="negative: got none"):
        session.generate({"encoder_hidden_states": embed(1)}, noise=noise, guidance_scale=2.0, **settings)
