"""Tiny random pipelines around image transformers, and how to run them."""

import diffusers as d
from tiny_inputs import TEXT, mask, rand, text
from tiny_unets import tiny_vae


def build_sd3():
    transformer = d.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=TEXT, caption_projection_dim=16, pooled_projection_dim=TEXT, out_channels=4,
        pos_embed_max_size=16, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip
    names = ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
    return d.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=d.FlowMatchEulerDiscreteScheduler(), **dict.fromkeys(names)
    )


def tiny_flux(guidance):
    return d.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, pooled_projection_dim=TEXT, guidance_embeds=guidance, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip


def build_flux(guidance=True):
    names = ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    return d.FluxPipeline(
        transformer=tiny_flux(guidance), scheduler=d.FlowMatchEulerDiscreteScheduler(), **dict.fromkeys(names)
    )


def run_flux(pipeline, *, batch, height, width, prompt, seed=0, **kwargs):
    return pipeline(
        prompt_embeds=rand(seed, batch, prompt, TEXT), pooled_prompt_embeds=rand(seed + 1, batch, TEXT), height=height,
        width=width, num_inference_steps=3, output_type="latent", **kwargs,
    )  # fmt: skip


def run_flux_with_true_cfg(pipeline, *, batch, prompt, seed=0, **kwargs):
    return run_flux(
        pipeline, batch=batch, prompt=prompt, seed=seed, true_cfg_scale=2.0,
        negative_prompt_embeds=rand(seed + 9, batch, prompt, TEXT),
        negative_pooled_prompt_embeds=rand(seed + 8, batch, TEXT), **kwargs,
    )  # fmt: skip


def build_flux2():
    transformer = d.Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, timestep_guidance_channels=8, axes_dims_rope=(4, 4, 4, 4),
    )  # fmt: skip
    return d.Flux2Pipeline(
        scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None, tokenizer=None,
        transformer=transformer,
    )  # fmt: skip


def run_flux2(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        prompt_embeds=rand(seed, batch, prompt, TEXT), height=height, width=width, num_inference_steps=3,
        output_type="latent",
    )  # fmt: skip


def build_pixart():
    transformer = d.PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        cross_attention_dim=16, caption_channels=TEXT, use_additional_conditions=False,
    )  # fmt: skip
    return d.PixArtSigmaPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer, scheduler=d.DPMSolverMultistepScheduler()
    )


def run_masked(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        negative_prompt=None, **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1), height=height, width=width,
        num_inference_steps=3, output_type="latent", use_resolution_binning=False,
    )  # fmt: skip


def build_sana():
    transformer = d.SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=TEXT,
        sample_size=8,
    )  # fmt: skip
    return d.SanaPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        transformer=transformer,
        scheduler=d.FlowMatchEulerDiscreteScheduler(),
    )


def build_dit():
    transformer = d.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        num_embeds_ada_norm=1000,
    )  # fmt: skip
    return d.DiTPipeline(transformer=transformer, vae=tiny_vae(1), scheduler=d.DDIMScheduler())


def run_dit(pipeline, *, batch, seed=0):
    return pipeline(class_labels=[seed + row for row in range(batch)], num_inference_steps=3, output_type="np")


def build_auraflow():
    transformer = d.AuraFlowTransformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=TEXT, caption_projection_dim=16, out_channels=4,
        pos_embed_max_size=256,
    )  # fmt: skip
    return d.AuraFlowPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer,
        scheduler=d.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def run_auraflow(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1), height=height, width=width,
        num_inference_steps=3, output_type="latent",
    )  # fmt: skip


def build_cogview4():
    transformer = d.CogView4Transformer2DModel(
        patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, out_channels=4,
        text_embed_dim=TEXT, time_embed_dim=8, condition_dim=4, sample_size=16,
    )  # fmt: skip
    scheduler = d.FlowMatchEulerDiscreteScheduler(
        base_shift=0.25, max_shift=0.75, base_image_seq_len=256, use_dynamic_shifting=True, time_shift_type="linear"
    )
    return d.CogView4Pipeline(tokenizer=None, text_encoder=None, vae=None, transformer=transformer, scheduler=scheduler)


def build_lumina():
    transformer = d.Lumina2Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=24, num_layers=1, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=8, axes_dim_rope=(4, 4, 4), axes_lens=(64, 64, 64),
        cap_feat_dim=TEXT,
    )  # fmt: skip
    return d.Lumina2Pipeline(
        transformer=transformer, scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None,
        tokenizer=None,
    )  # fmt: skip


def run_lumina(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1), height=height, width=width,
        num_inference_steps=3, output_type="latent",
    )  # fmt: skip
