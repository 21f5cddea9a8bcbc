"""Tiny random pipelines of the families of 2025 and 2026, and how to run them."""

import diffusers as d
from tiny_inputs import TEXT, mask, rand, text

SCHEDULER = d.FlowMatchEulerDiscreteScheduler


def build_qwen():
    transformer = d.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    return d.QwenImagePipeline(
        transformer=transformer, scheduler=SCHEDULER(), vae=None, text_encoder=None, tokenizer=None
    )


def run_qwen(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        **text(batch, prompt, seed), prompt_embeds_mask=mask(batch, prompt, seed),
        negative_prompt_embeds_mask=mask(batch, prompt, seed + 1), height=height, width=width, num_inference_steps=3,
        output_type="latent",
    )  # fmt: skip


def build_z_image():
    transformer = d.ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=TEXT,
        axes_dims=[4, 6, 6], axes_lens=[128, 64, 64],
    )  # fmt: skip
    return d.ZImagePipeline(transformer=transformer, scheduler=SCHEDULER(), vae=None, text_encoder=None, tokenizer=None)


def run_z_image(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        prompt_embeds=[*rand(seed, batch, prompt, TEXT)], negative_prompt_embeds=[*rand(seed + 9, batch, prompt, TEXT)],
        height=height, width=width, num_inference_steps=3, output_type="latent",
    )  # fmt: skip


def build_mochi():
    transformer = d.MochiTransformer3DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=TEXT, in_channels=4,
        text_embed_dim=TEXT, time_embed_dim=8, max_sequence_length=16,
    )  # fmt: skip
    return d.MochiPipeline(transformer=transformer, scheduler=SCHEDULER(), vae=None, text_encoder=None, tokenizer=None)


def run_mochi(pipeline, *, batch, height, width, frames, prompt, seed=0):
    return pipeline(
        **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed).bool(),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1).bool(), height=height, width=width,
        num_frames=frames, num_inference_steps=3, output_type="latent",
    )  # fmt: skip


def build_chroma():
    transformer = d.ChromaTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, axes_dims_rope=(4, 6, 6), approximator_num_channels=8, approximator_hidden_dim=16,
        approximator_layers=1,
    )  # fmt: skip
    return d.ChromaPipeline(transformer=transformer, scheduler=SCHEDULER(), vae=None, text_encoder=None, tokenizer=None)


def run_chroma(pipeline, *, batch, height, width, prompt, seed=0):
    return pipeline(
        **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed).float(),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1).float(), height=height, width=width,
        num_inference_steps=3, output_type="latent",
    )  # fmt: skip


def build_hunyuan15():
    from diffusers.guiders import ClassifierFreeGuidance

    transformer = d.HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1,
        num_refiner_layers=1, text_embed_dim=TEXT, text_embed_2_dim=TEXT, image_embed_dim=TEXT,
        rope_axes_dim=(4, 6, 6), target_size=128, task_type="t2v",
    )  # fmt: skip
    vae = d.AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(8,) * 5, layers_per_block=1, spatial_compression_ratio=16,
        temporal_compression_ratio=4,
    )  # fmt: skip
    names = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    return d.HunyuanVideo15Pipeline(
        transformer=transformer, scheduler=SCHEDULER(), vae=vae, guider=ClassifierFreeGuidance(), **dict.fromkeys(names)
    )


def run_hunyuan15(pipeline, *, batch, height, width, frames, prompt, seed=0, steps=3):
    return pipeline(
        **text(batch, prompt, seed), prompt_embeds_mask=mask(batch, prompt, seed),
        negative_prompt_embeds_mask=mask(batch, prompt, seed + 1),
        prompt_embeds_2=rand(seed + 2, batch, prompt, TEXT), prompt_embeds_mask_2=mask(batch, prompt, seed + 2),
        negative_prompt_embeds_2=rand(seed + 3, batch, prompt, TEXT),
        negative_prompt_embeds_mask_2=mask(batch, prompt, seed + 3), height=height, width=width, num_frames=frames,
        num_inference_steps=steps, output_type="latent",
    )  # fmt: skip


def build_ltx2():
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    transformer = d.LTX2VideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
        audio_in_channels=16, audio_out_channels=16, audio_num_attention_heads=2, audio_attention_head_dim=4,
        audio_cross_attention_dim=8, num_layers=2, caption_channels=TEXT,
    )  # fmt: skip
    vae = d.AutoencoderKLLTX2Video(
        latent_channels=8, block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,),
        decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,), decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False), downsample_type=("spatial",), upsample_residual=(False,),
        upsample_factor=(1,), patch_size=1, spatial_compression_ratio=16, temporal_compression_ratio=4,
    )  # fmt: skip
    sound = d.AutoencoderKLLTX2Audio(
        base_channels=16, ch_mult=(1,), num_res_blocks=1, in_channels=2, output_channels=2, latent_channels=8,
        resolution=32, mid_block_add_attention=False, mel_bins=8,
    )  # fmt: skip
    connectors = LTX2TextConnectors(
        caption_channels=TEXT, text_proj_in_factor=1, video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=8, video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=2, audio_connector_attention_head_dim=8, audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
    )  # fmt: skip
    names = ("text_encoder", "tokenizer", "vocoder")
    return d.LTX2Pipeline(
        transformer=transformer, scheduler=SCHEDULER(), vae=vae, audio_vae=sound, connectors=connectors,
        **dict.fromkeys(names),
    )  # fmt: skip


def run_ltx2(pipeline, *, batch, height, width, frames, prompt, seed=0, steps=3):
    return pipeline(
        **text(batch, prompt, seed), prompt_attention_mask=mask(batch, prompt, seed),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1), height=height, width=width, num_frames=frames,
        stg_scale=0.0, audio_stg_scale=0.0, modality_scale=1.0, audio_modality_scale=1.0, num_inference_steps=steps,
        output_type="latent",
    )  # fmt: skip
