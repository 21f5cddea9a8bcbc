"""A diffusers pipeline, exported and run by zeus-trt: the full run equals the pipeline's own.

python examples/export_pipeline.py

The pipeline is tiny and random, so that nothing is downloaded. With a trained one on disk the export is
`zeus-trt export FOLDER -o BUNDLE`, and the embeddings come from its `encode_prompt`.
"""

import tempfile
from pathlib import Path

import diffusers
import torch

from zeus_trt.export import Settings, export_model
from zeus_trt.runtime import Session


def build_pipeline() -> diffusers.DiffusionPipeline:
    """Stable Diffusion's pipeline around a small UNet, without text encoder and VAE."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(16,),
        norm_num_groups=8,
        layers_per_block=1,
        cross_attention_dim=24,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("UpBlock2D",),
    )
    pipeline = diffusers.StableDiffusionPipeline(
        vae=None,
        text_encoder=None,
        tokenizer=None,
        unet=unet.eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run(pipeline, batch: int, height: int, width: int, tokens: int):
    """One run of the pipeline at a setting: what the capture repeats, and what a user would call."""
    return pipeline(
        prompt_embeds=torch.ones(batch, tokens, 24),
        negative_prompt_embeds=torch.zeros(batch, tokens, 24),
        height=height,
        width=width,
        num_inference_steps=3,
        output_type="latent",
    )


def main() -> None:
    pipeline = build_pipeline()
    scale = pipeline.vae_scale_factor
    settings = Settings(
        base={"batch": 2, "height": 8 * scale, "width": 12 * scale, "tokens": 7},
        varied={"batch": 3, "height": 10 * scale, "width": 14 * scale, "tokens": 11},
        run=run,
    )
    noise = torch.randn(1, 4, 12, 16, generator=torch.Generator().manual_seed(0))
    prompt, negative = torch.randn(2, 1, 9, 24, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_model(pipeline, Path(folder) / "bundle", settings=settings)
        print(bundle.manifest.describe())
        session = Session(bundle)
        own = pipeline(
            prompt_embeds=prompt,
            negative_prompt_embeds=negative,
            latents=noise.clone(),
            height=12 * scale,
            width=16 * scale,
            num_inference_steps=20,
            guidance_scale=5.0,
            output_type="latent",
        )[0]
        for ratio in (0, 2, 3, 4):
            result = session.generate(
                {"encoder_hidden_states": prompt},
                negative={"encoder_hidden_states": negative},
                noise=noise,
                plan=session.plan(20, ratio),
                num_steps=20,
                guidance_scale=5.0,
            )
            error = float((result.latents - own).norm() / own.norm())
            print(f"r = {ratio}: {result.report.nfe} calls, {result.report.mode} mode, relative distance {error:.1e}")


if __name__ == "__main__":
    main()
