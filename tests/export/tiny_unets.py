"""Tiny random pipelines around UNets, and how to run them."""

# ruff: noqa: C408  (a config reads better as keywords)

import diffusers as d
from tiny_inputs import TEXT, pooled, rand, text


def tiny_vae(levels: int = 4):
    return d.AutoencoderKL(
        block_out_channels=(4,) * levels, norm_num_groups=2, latent_channels=4, layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels,
    )  # fmt: skip


def tiny_unet(**changes):
    config = dict(
        sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, attention_head_dim=4,
        cross_attention_dim=TEXT, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return d.UNet2DConditionModel(**{**config, **changes})


def one_level_unet(**changes):
    """Exports in a third of the time: for what does not depend on the levels."""
    blocks = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("UpBlock2D",)}
    return tiny_unet(block_out_channels=(8,), mid_block_type=None, **blocks, **changes)


def build_sd(scheduler=None, unet=None):
    return d.StableDiffusionPipeline(
        vae=None, text_encoder=None, tokenizer=None, unet=unet or tiny_unet(),
        scheduler=scheduler or d.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def build_sd2():
    unet = tiny_unet(use_linear_projection=True, attention_head_dim=(2, 4))
    return build_sd(d.EulerDiscreteScheduler(steps_offset=1, prediction_type="v_prediction"), unet)


def run_sd(pipeline, *, batch, height, width, prompt, seed=0, **kwargs):
    return pipeline(
        **text(batch, prompt, seed), height=height, width=width, num_inference_steps=3, output_type="latent", **kwargs
    )


def build_inpaint():
    return d.StableDiffusionInpaintPipeline(
        vae=tiny_vae(), text_encoder=None, tokenizer=None, unet=one_level_unet(in_channels=9),
        scheduler=d.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def run_inpaint(pipeline, *, batch, height, width, prompt, seed=0):
    image = rand(seed + 2, batch, 3, height, width).tanh()
    hole = (rand(seed + 3, batch, 1, height, width) > 0).float()
    return run_sd(
        pipeline, batch=batch, height=height, width=width, prompt=prompt, seed=seed, image=image, mask_image=hole
    )


def tiny_sdxl_unet(time_ids):
    return tiny_unet(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        addition_embed_type="text_time", addition_time_embed_dim=8, use_linear_projection=True,
        projection_class_embeddings_input_dim=time_ids * 8 + TEXT, transformer_layers_per_block=(1, 2),
    )  # fmt: skip


def _sdxl_parts(time_ids):
    return dict(
        text_encoder=None, text_encoder_2=None, tokenizer=None, tokenizer_2=None, unet=tiny_sdxl_unet(time_ids),
        scheduler=d.EulerDiscreteScheduler(), add_watermarker=False,
    )  # fmt: skip


def build_sdxl():
    return d.StableDiffusionXLPipeline(vae=None, **_sdxl_parts(6))


def build_refiner():
    return d.StableDiffusionXLImg2ImgPipeline(vae=tiny_vae(), requires_aesthetics_score=True, **_sdxl_parts(5))


def run_sdxl(pipeline, *, batch, height, width, prompt, seed=0, **kwargs):
    return pipeline(
        **text(batch, prompt, seed), **pooled(batch, seed), height=height, width=width, num_inference_steps=3,
        output_type="latent", **kwargs,
    )  # fmt: skip


def run_refiner(pipeline, *, batch, height, width, prompt, seed=0):
    image = rand(seed + 2, batch, 3, height, width).tanh()
    return pipeline(
        **text(batch, prompt, seed), **pooled(batch, seed), image=image, strength=0.5, num_inference_steps=6,
        output_type="latent",
    )  # fmt: skip
