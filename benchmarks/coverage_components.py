"""Tiny random components of diffusers pipelines: a table of component classes, not of pipelines.

A size is small by the name of its parameter (``SIZES``); a class that needs more has a row in ``MODELS``. Where pipelines
need different networks of one class, such as an inpainting denoiser, the row holds alternatives: the first with which
the plain pipeline runs is taken.
"""

# ruff: noqa: C408  (a config reads better as keywords)

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import coverage_texts as texts
import diffusers
import torch

WIDTH = texts.WIDTH
LATENT = 4  # channels of latents

SIZES: Mapping[str, Any] = {
    "attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 2, "num_single_layers": 1, "num_refiner_layers": 1,
    "num_mmdit_layers": 1, "num_single_dit_layers": 1, "joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH,
    "cross_attention_dim": WIDTH, "caption_channels": WIDTH, "text_embed_dim": WIDTH, "text_dim": WIDTH,
    "caption_projection_dim": 32, "pos_embed_max_size": 64, "axes_dims_rope": (4, 6, 6), "rope_axes_dim": (4, 6, 6),
    "freq_dim": 16, "ffn_dim": 32, "time_embed_dim": 16, "condition_dim": 8, "sample_height": 8, "sample_width": 8,
    "sample_frames": 9, "in_channels": LATENT, "out_channels": LATENT, "latent_channels": LATENT, "z_dim": LATENT,
    "norm_num_groups": 4, "layers_per_block": 1, "num_single_attention_layers": 1, "cap_feat_dim": WIDTH,
    "in_text_dim": WIDTH, "in_text_dim2": WIDTH, "rope_max_seq_len": 64, "intermediate_size": 32, "num_res_blocks": 1,
    "base_dim": 4, "dim_mult": [1, 1, 1, 1], "latents_mean": [0.0] * LATENT, "latents_std": [1.0] * LATENT,
    "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "context_in_dim": WIDTH, "text_in_dim": WIDTH,
    "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cross_attention_dim_t5": WIDTH,
    "num_kv_heads": 2, "text_encoder_dim": WIDTH, "approximator_num_channels": 8, "approximator_hidden_dim": 16,
    "approximator_layers": 1, "adaln_lora_dim": 4, "encoder_hid_dim": WIDTH, "time_embedding_dim": 16,
    "conditioning_embedding_out_channels": (4, 8), "num_text_blocks": 1, "num_visual_blocks": 1,
}  # fmt: skip
"""Values by the name of a parameter; only for parameters that a class has, and whose default is no None."""

_UNET = dict(
    sample_size=8, block_out_channels=(8, 16), attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
_UNET_XL = dict(
    _UNET, cross_attention_dim=2 * WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
    projection_class_embeddings_input_dim=6 * 8 + WIDTH, use_linear_projection=True,
)  # fmt: skip
_VAE = dict(
    block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    in_channels=3, out_channels=3,
)  # fmt: skip
_PACKED = dict(in_channels=4 * LATENT, out_channels=None)


def _refine(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a refiner, whose pictures have an aesthetic score and whose text encoder is the second one."""
    return dict(config, cross_attention_dim=WIDTH, projection_class_embeddings_input_dim=5 * 8 + WIDTH)


def _unets(beside: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "text_encoder_2" in beside:
        return [_UNET_XL, dict(_UNET_XL, in_channels=2 * LATENT), dict(_UNET_XL, time_cond_proj_dim=16)]
    simple = dict(_UNET, down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"), up_block_types=(
        "SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        attention_head_dim=4, resnet_time_scale_shift="scale_shift", out_channels=2 * LATENT)  # fmt: skip
    pixels = dict(simple, in_channels=3, out_channels=6, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_proj")
    kandinsky2 = dict(simple, encoder_hid_dim=WIDTH, encoder_hid_dim_type="image_proj", addition_embed_type="image",
        cross_attention_dim=WIDTH)
    if "movq" in beside:
        both = dict(simple, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_image_proj", addition_embed_type="text_image")
        hint = dict(kandinsky2, addition_embed_type="image_hint", in_channels=2 * LATENT)
        return [kandinsky2, both, dict(kandinsky2, in_channels=9), dict(both, in_channels=9), hint]
    if "watermarker" in beside:
        return [pixels, dict(pixels, in_channels=6, class_embed_type="timestep")]
    if "image_noising_scheduler" in beside:
        return [dict(_UNET, class_embed_type="projection", projection_class_embeddings_input_dim=2 * WIDTH)]
    if "low_res_scheduler" in beside:
        return [dict(_UNET, in_channels=LATENT + 3, num_class_embeds=1000)]
    return [
        _UNET, dict(_UNET, in_channels=9), dict(_UNET, in_channels=2 * LATENT), dict(_UNET, in_channels=5),
        dict(_UNET, time_cond_proj_dim=16),
        dict(_UNET, class_embed_type="simple_projection", projection_class_embeddings_input_dim=WIDTH,
             class_embeddings_concat=True, cross_attention_dim=(None, None)),
        dict(_UNET, in_channels=2 * LATENT, out_channels=2 * LATENT + 1, time_cond_proj_dim=16),
    ]  # fmt: skip


_PIXELS = dict(
    sample_size=16, block_out_channels=(8, 16), attention_head_dim=4, in_channels=3, out_channels=3,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
_WAN = [
    dict(attention_head_dim=12), dict(attention_head_dim=12, in_channels=2 * LATENT + 4),
    dict(attention_head_dim=12, in_channels=2 * LATENT + 4, image_dim=WIDTH, added_kv_proj_dim=24),
    dict(attention_head_dim=12, in_channels=2 * LATENT),
]  # fmt: skip
_KANDINSKY = dict(in_visual_dim=LATENT, out_visual_dim=LATENT, time_dim=16, model_dim=32, ff_dim=32, axes_dims=(4, 6, 6))
_CASCADE = dict(
    timestep_ratio_embedding_dim=8, patch_size=1, conditioning_dim=WIDTH, block_out_channels=(8, 8), num_attention_heads=(2, 2),
    down_num_layers_per_block=(1, 1), up_num_layers_per_block=(1, 1), in_channels=16, out_channels=16,
)  # fmt: skip


def _unet_of(beside: Mapping[str, Any]) -> dict[str, Any]:
    return _UNET_XL if "text_encoder_2" in beside else _UNET


def _share(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """What of a UNet's config its ControlNet has too."""
    shared = {name: value for name, value in config.items() if name in inspect.signature(kind.__init__).parameters}
    return {**shared, "conditioning_embedding_out_channels": (4, 4, 4, 8)}


def _latent_configs(beside: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_VAE, shift_factor=0.0)


MODELS: Mapping[str, Any] = {
    "UNet2DConditionModel": _unets,
    "AutoencoderKL": lambda beside: _latent_configs(beside),
    "UNet2DModel": [dict(_PIXELS), dict(_PIXELS, in_channels=6), dict(_PIXELS, in_channels=LATENT, out_channels=LATENT)],
    "UNet1DModel": dict(sample_size=256, sample_rate=16000, in_channels=2, out_channels=2, extra_in_channels=16,
                        block_out_channels=(8, 8, 8), norm_num_groups=4),
    "VQModel": dict(_VAE, block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=16, vq_embed_dim=LATENT),
    "ControlNetModel": lambda beside: _share(_unet_of(beside), diffusers.ControlNetModel),
    "ControlNetUnionModel": lambda beside: _share(_unet_of(beside), diffusers.ControlNetUnionModel)
        | dict(num_trans_channel=8, num_proj_channel=8, num_trans_head=2),
    "SparseControlNetModel": dict(
        block_out_channels=(8, 16), down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"), attention_head_dim=2,
        motion_num_attention_heads=2, conditioning_channels=3, use_simplified_condition_embedding=False,
        concat_conditioning_mask=False),
    "ControlNetXSAdapter": dict(block_out_channels=(4, 8), num_attention_heads=2, base_block_out_channels=(8, 16),
                                conditioning_embedding_out_channels=(4, 4, 4, 8), time_embedding_mix=0.5,
                                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), learn_time_embedding=False),
    "MotionAdapter": dict(block_out_channels=(8, 16), motion_num_attention_heads=2, motion_norm_num_groups=4,
                          motion_layers_per_block=1),
    "T2IAdapter": dict(channels=[8, 16], num_res_blocks=1, downscale_factor=8, in_channels=3),
    "PriorTransformer": dict(embedding_dim=WIDTH, num_embeddings=texts.LENGTH),
    "FluxTransformer2DModel": [
        dict(_PACKED, guidance_embeds=True), dict(in_channels=8 * LATENT, out_channels=4 * LATENT, guidance_embeds=True),
        dict(in_channels=8 * LATENT + 256, out_channels=4 * LATENT, guidance_embeds=True),
    ],
    "FluxControlNetModel": dict(in_channels=4 * LATENT),
    "Flux2Transformer2DModel": [dict(_PACKED, axes_dims_rope=(4, 4, 4, 4), joint_attention_dim=3 * WIDTH)],
    "BriaTransformer2DModel": dict(in_channels=4 * LATENT), "OvisImageTransformer2DModel": dict(_PACKED, out_channels=4 * LATENT),
    "LongCatImageTransformer2DModel": dict(in_channels=4 * LATENT), "ChromaTransformer2DModel": dict(_PACKED),
    "BriaFiboTransformer2DModel": dict(in_channels=LATENT, joint_attention_dim=2 * WIDTH),
    "SD3Transformer2DModel": dict(sample_size=32, joint_attention_dim=2 * WIDTH, pooled_projection_dim=2 * WIDTH),
    "SD3ControlNetModel": dict(sample_size=32, joint_attention_dim=2 * WIDTH, pooled_projection_dim=2 * WIDTH,
                               extra_conditioning_channels=0),
    "WanTransformer3DModel": _WAN, "SkyReelsV2Transformer3DModel": _WAN, "ChronoEditTransformer3DModel": _WAN,
    "AnyFlowTransformer3DModel": dict(attention_head_dim=12), "AnyFlowFARTransformer3DModel": dict(attention_head_dim=12,
        chunk_partition=(1, 1, 1)),
    "HeliosTransformer3DModel": dict(attention_head_dim=16, rope_dim=(4, 6, 6)),
    "WanVACETransformer3DModel": dict(attention_head_dim=12, vace_layers=[0, 1], vace_in_channels=2 * LATENT + 64),
    "WanAnimateTransformer3DModel": dict(
        attention_head_dim=12, in_channels=2 * LATENT + 4, latent_channels=LATENT, image_dim=WIDTH,
        motion_encoder_channel_sizes={str(2 ** i): 8 for i in range(2, 7)}, motion_encoder_size=64, motion_style_dim=8,
        motion_dim=4, motion_encoder_dim=16, face_encoder_hidden_dim=16, face_encoder_num_heads=2,
        inject_face_latents_blocks=2),
    "AutoencoderKLWan": dict(in_channels=3, out_channels=3), "AutoencoderKLQwenImage": dict(input_channels=3),
    "QwenImageTransformer2DModel": [dict(in_channels=4 * LATENT, num_attention_heads=2),
                                    dict(in_channels=4 * LATENT, use_additional_t_cond=True)],
    "QwenImageControlNetModel": [dict(in_channels=4 * LATENT), dict(in_channels=4 * LATENT, extra_condition_channels=LATENT + 12)],
    "ZImageTransformer2DModel": dict(dim=32, axes_dims=[4, 6, 6], axes_lens=[256, 64, 64]),
    "ZImageControlNetModel": dict(dim=32, control_in_dim=LATENT, control_layers_places=[0, 1],
                                  control_refiner_layers_places=[0], add_control_noise_refiner="control_noise_refiner"),
    "Lumina2Transformer2DModel": dict(sample_size=8, hidden_size=32, axes_dim_rope=(4, 6, 6), axes_lens=(256, 64, 64)),
    "LuminaNextDiT2DModel": dict(sample_size=8, hidden_size=32, num_kv_heads=2),
    "PixArtTransformer2DModel": dict(sample_size=8, out_channels=2 * LATENT, num_attention_heads=2, attention_head_dim=16),
    "DiTTransformer2DModel": dict(sample_size=8, out_channels=2 * LATENT, num_embeds_ada_norm=1000),
    "HunyuanDiT2DModel": dict(sample_size=8, patch_size=2, in_channels=LATENT, hidden_size=32, text_len=texts.LENGTH),
    "HunyuanDiT2DControlNetModel": dict(sample_size=8, patch_size=2, in_channels=LATENT, hidden_size=32,
                                        transformer_num_layers=2, text_len=texts.LENGTH),
    "LatteTransformer3DModel": dict(
        sample_size=8, patch_size=2, in_channels=LATENT, out_channels=2 * LATENT, cross_attention_dim=WIDTH, num_layers=2,
        caption_channels=WIDTH, attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_single", norm_elementwise_affine=False, video_length=16),
    "AllegroTransformer3DModel": dict(attention_head_dim=12, cross_attention_dim=24),
    "HiDreamImageTransformer2DModel": dict(
        patch_size=2, in_channels=LATENT, out_channels=LATENT, num_layers=1, caption_channels=[WIDTH, WIDTH],
        text_emb_dim=2 * WIDTH, axes_dims_rope=(8, 4, 4), max_resolution=(64, 64), llama_layers=(0, 1)),
    "CogVideoXTransformer3DModel": [dict(use_rotary_positional_embeddings=True, max_text_seq_length=texts.LENGTH),
        dict(use_rotary_positional_embeddings=True, in_channels=2 * LATENT, max_text_seq_length=texts.LENGTH)],
    "CogView3PlusTransformer2DModel": dict(sample_size=16), "GlmImageTransformer2DModel": dict(),
    "CogView4Transformer2DModel": [dict(sample_size=16, rope_axes_dim=(8, 8)),
                                   dict(sample_size=16, rope_axes_dim=(8, 8), in_channels=2 * LATENT)],
    "EasyAnimateTransformer3DModel": [dict(in_channels=LATENT, out_channels=LATENT, patch_size=2, mmdit_layers=1, num_layers=1),
        dict(in_channels=2 * LATENT, out_channels=LATENT, patch_size=2, num_layers=1, mmdit_layers=1),
        dict(in_channels=2 * LATENT + 1, out_channels=LATENT, patch_size=2, num_layers=1, mmdit_layers=1)],
    "HunyuanVideoTransformer3DModel": [dict(guidance_embeds=True), dict(guidance_embeds=False, in_channels=2 * LATENT),
        dict(guidance_embeds=False, in_channels=2 * LATENT + 1, image_condition_type="latent_concat"),
        dict(guidance_embeds=True, image_condition_type="token_replace")],
    "HunyuanVideoFramepackTransformer3DModel": dict(has_image_proj=True, image_proj_dim=WIDTH, has_clean_x_embedder=True),
    "HunyuanVideo15Transformer3DModel": [
        dict(in_channels=2 * LATENT + 1, text_embed_2_dim=WIDTH, image_embed_dim=WIDTH, target_size=64, task_type="t2v"),
        dict(in_channels=2 * LATENT + 1, text_embed_2_dim=WIDTH, image_embed_dim=WIDTH, target_size=64, task_type="i2v")],
    "HunyuanImageTransformer2DModel": [
        dict(text_embed_2_dim=WIDTH, rope_axes_dim=(8, 8), patch_size=(1, 1)),
        dict(in_channels=2 * LATENT, patch_size=(1, 1, 1), rope_axes_dim=(4, 6, 6))],
    "MochiTransformer3DModel": dict(in_channels=12, out_channels=None, max_sequence_length=16),
    "MotifVideoTransformer3DModel": dict(in_channels=2 * LATENT + 1, rope_axes_dim=(4, 6, 6)),
    "SanaTransformer2DModel": [dict(sample_size=8), dict(sample_size=8, guidance_embeds=True, qk_norm="rms_norm_across_heads")],
    "SanaControlNetModel": dict(sample_size=8), "SanaVideoTransformer3DModel": dict(sample_size=8, attention_head_dim=16),
    "SanaWMTransformer3DModel": dict(hidden_size=32, linear_head_dim=16, chunk_plucker_post_attn_blocks=1, image_size=64,
                                     mixed_precision="no"),
    "PRXTransformer2DModel": [dict(hidden_size=32, num_heads=2, depth=1, axes_dim=[8, 8]),
                              dict(hidden_size=32, num_heads=2, depth=1, axes_dim=[8, 8], in_channels=3, bottleneck_size=8)],
    "CosmosTransformer3DModel": [dict(max_size=(8, 32, 32), encoder_hidden_states_channels=WIDTH),
        dict(max_size=(8, 32, 32), in_channels=LATENT + 1), dict(max_size=(8, 32, 32), in_channels=LATENT + 1,
        use_crossattn_projection=True, crossattn_proj_in_channels=2 * WIDTH, encoder_hidden_states_channels=WIDTH)],
    "LTXVideoTransformer3DModel": dict(attention_head_dim=16, cross_attention_dim=32),
    "LTX2VideoTransformer3DModel": dict(
        cross_attention_dim=32, audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=2,
        audio_attention_head_dim=8, audio_cross_attention_dim=16, rope_double_precision=False, rope_type="split"),
    "Kandinsky3UNet": dict(time_embedding_dim=16, groups=2, attention_head_dim=4, block_out_channels=(8, 16), layers_per_block=3),
    "Kandinsky5Transformer3DModel": [dict(_KANDINSKY), dict(_KANDINSKY, visual_cond=True)],
    "UVit2DModel": dict(hidden_size=32, cond_embed_dim=WIDTH, micro_cond_encode_dim=8, micro_cond_embed_dim=40,
                        encoder_hidden_size=WIDTH, vocab_size=32, codebook_size=16, in_channels=32, block_out_channels=32,
                        block_num_heads=2, num_hidden_layers=1, intermediate_size=32, sample_size=8),
    "OmniGenTransformer2DModel": dict(hidden_size=32, num_key_value_heads=2, time_step_dim=4, vocab_size=256, pad_token_id=0,
        rope_scaling={"long_factor": list(range(1, 9)), "short_factor": list(range(1, 9))}),
    "AuraFlowTransformer2DModel": dict(sample_size=8, attention_head_dim=16, caption_projection_dim=32),
    "AudioLDM2UNet2DConditionModel": dict(_UNET, cross_attention_dim=(WIDTH, WIDTH)),
    "AudioLDM2ProjectionModel": dict(text_encoder_dim=WIDTH, text_encoder_1_dim=WIDTH, langauge_model_dim=WIDTH),
    "StableAudioDiTModel": dict(sample_size=16, num_key_value_attention_heads=2, time_proj_dim=8,
                                global_states_input_dim=2 * WIDTH, cross_attention_input_dim=WIDTH),
    "StableAudioProjectionModel": dict(text_encoder_dim=WIDTH, conditioning_dim=WIDTH, min_value=0, max_value=512),
    "AutoencoderOobleck": dict(encoder_hidden_size=8, downsampling_ratios=[2, 64], channel_multiples=[1, 2], decoder_channels=8,
                               decoder_input_channels=LATENT),
    "UNet3DConditionModel": dict(
        sample_size=8, block_out_channels=(8, 16), attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    "I2VGenXLUNet": dict(
        sample_size=8, block_out_channels=(8, 16), attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    "UNetSpatioTemporalConditionModel": dict(
        sample_size=8, block_out_channels=(8, 16), num_attention_heads=(2, 2), in_channels=2 * LATENT, num_frames=9,
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=24,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")),
    "AutoencoderKLTemporalDecoder": dict(block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4),
    "AutoencoderDC": dict(
        attention_head_dim=2, encoder_block_types="ResBlock", decoder_block_types="ResBlock", encoder_layers_per_block=(1,) * 4,
        decoder_layers_per_block=(1,) * 4, encoder_qkv_multiscales=((),) * 4, decoder_qkv_multiscales=((),) * 4,
        encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4, downsample_block_type="conv",
        upsample_block_type="interpolate"),
    "AutoencoderKLMochi": dict(latent_channels=12, encoder_block_out_channels=(32,) * 4, decoder_block_out_channels=(32,) * 4,
                               layers_per_block=(1,) * 5, latents_mean=[0.0] * 12, latents_std=[1.0] * 12),
    "AutoencoderKLCosmos": dict(encoder_block_out_channels=(8,) * 4, decode_block_out_channels=(8,) * 4, resolution=64,
                                attention_resolutions=(8,), latents_mean=[0.0] * 128, latents_std=[1.0] * 128),
    "AutoencoderKLLTXVideo": dict(
        latent_channels=LATENT, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4, layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5, decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4, timestep_conditioning=False),
    "AutoencoderKLLTX2Video": dict(
        block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,), decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,), decoder_spatio_temporal_scaling=(True,), decoder_inject_noise=(False, False),
        downsample_type=("spatial",), upsample_residual=(False,), upsample_factor=(1,), patch_size=1),
    "AutoencoderKLLTX2Audio": dict(base_channels=4, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, in_channels=2,
        output_channels=2, latent_channels=2, resolution=32, mid_block_add_attention=False, mel_bins=8),
    "AutoencoderKLHunyuanImage": dict(block_out_channels=(32, 32, 32, 32), spatial_compression_ratio=8, sample_size=64,
                                      latent_channels=LATENT, in_channels=3, out_channels=3),
    "AutoencoderKLHunyuanImageRefiner": dict(block_out_channels=(32, 32, 32, 32), latent_channels=LATENT),
    "AutoencoderKLHunyuanVideo15": dict(block_out_channels=(8, 8, 8, 8, 8)),
    "AutoencoderTiny": dict(encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4),
    "AutoencoderKLMagvit": dict(
        block_out_channels=(8,) * 4, spatial_group_norm=False,
        down_block_types=("SpatialDownBlock3D", *("SpatialTemporalDownBlock3D",) * 3),
        up_block_types=("SpatialUpBlock3D", *("SpatialTemporalUpBlock3D",) * 3)),
    "DreamLiteUNetModel": dict(sample_size=8, block_out_channels=(8, 16, 16), attention_head_dim=4),
    "StableCascadeUNet": [
        dict(_CASCADE, clip_text_in_channels=WIDTH, clip_text_pooled_in_channels=WIDTH, clip_image_in_channels=WIDTH,
             switch_level=(False,)),
        dict(_CASCADE, clip_text_pooled_in_channels=WIDTH, effnet_in_channels=16, pixel_mapper_in_channels=3, in_channels=LATENT,
             out_channels=LATENT),
    ],
    "PaellaVQModel": dict(bottleneck_blocks=1, num_vq_embeddings=16, latent_channels=4, in_channels=3, out_channels=3),
    "WuerstchenPrior": dict(c_in=2, c=8, c_cond=WIDTH, c_r=8, depth=1, nhead=2),
    "WuerstchenDiffNeXt": dict(c_in=4, c_out=4, c_r=8, patch_size=2, c_cond=32, c_hidden=[8, 8, 8, 8], nhead=[-1, 2, 2, 2],
                               blocks=[1, 1, 1, 1], level_config=["CT"] * 4, clip_embd=WIDTH, effnet_embd=16, kernel_size=3,
                               inject_effnet=[False, True, True, True]),
    "ShapERenderer": dict(d_latent=16, param_shapes=((8, 93), (8, 8), (8, 8), (8, 8))),
    "UnCLIPTextProjModel": dict(clip_extra_context_tokens=4, clip_embeddings_dim=WIDTH, time_embed_dim=32,
                                cross_attention_dim=WIDTH),
    "StableUnCLIPImageNormalizer": dict(embedding_dim=WIDTH),
    "UniDiffuserModel": dict(text_dim=WIDTH, clip_img_dim=WIDTH, num_text_tokens=77, in_channels=4, out_channels=4, num_layers=2,
                             sample_size=8, patch_size=2, activation_fn="gelu", num_embeds_ada_norm=1000, norm_type="layer_norm"),
    "UniDiffuserTextDecoder": dict(prefix_length=77, prefix_inner_dim=WIDTH, prefix_hidden_dim=WIDTH, vocab_size=256, n_positions=128,
                                   n_embd=32, n_layer=1, n_head=2),
    "Transformer2DModel": dict(num_attention_heads=2, cross_attention_dim=WIDTH, sample_size=8, num_vector_embeds=17,
                               num_embeds_ada_norm=1000, activation_fn="geglu-approximate", norm_num_groups=4,
                               norm_elementwise_affine=True),
    "LearnedClassifierFreeSamplingEmbeddings": dict(learnable=False),
    "Ideogram4Transformer2DModel": dict(in_channels=16, adaln_dim=16, llm_features_dim=WIDTH, mrope_section=(2, 3, 3)),
    "Krea2Transformer2DModel": dict(in_channels=16, num_key_value_heads=2, timestep_embed_dim=16, text_hidden_dim=WIDTH,
        num_text_layers=2, text_num_attention_heads=2, text_num_key_value_heads=2, text_intermediate_size=32,
        num_layerwise_text_blocks=1, num_refiner_text_blocks=1),
    "ErnieImageTransformer2DModel": dict(in_channels=16, out_channels=16, hidden_size=32, ffn_hidden_size=32,
        text_in_dim=WIDTH, rope_axes_dim=(4, 6, 6)),
    "NucleusMoEImageTransformer2DModel": dict(in_channels=16, out_channels=LATENT, num_experts=4, moe_intermediate_dim=16, mlp_ratio=2.0,
                                              axes_dims_rope=(4, 6, 6)),
    "QwenImage21Transformer2DModel": dict(in_channels=64, out_channels=64, context_in_dim=WIDTH),
    "AutoencoderKLQwenImage21": dict(base_dim=4, decoder_base_dim=4, z_dim=64, dim_mult=[1, 1, 1, 1, 1], latents_mean=[0.0] * 64,
                                     latents_std=[1.0] * 64),
    "JoyImageEditTransformer3DModel": dict(hidden_size=32, rope_dim_list=[4, 6, 6]),
    "JoyImageEditPlusTransformer3DModel": dict(hidden_size=32, rope_dim_list=[4, 6, 6]),
    "AceStepTransformer1DModel": dict(hidden_size=32, num_hidden_layers=1, num_key_value_heads=2, head_dim=16, in_channels=192),
    "LongCatAudioDiTTransformer": dict(dit_dim=32, dit_depth=2, dit_heads=2, dit_text_dim=WIDTH, latent_dim=4),
    "LongCatAudioDiTVae": dict(channels=8, c_mults=[1, 2], strides=[2, 64], latent_dim=4, encoder_latent_dim=8,
                               downsampling_ratio=128),
    "ReduxImageEncoder": dict(redux_dim=WIDTH, txt_in_features=WIDTH),
    "BriaFibo2Transformer2DModel": dict(dim=32, axes_dims=(4, 6, 6), axes_lens=(2048, 64, 64), in_channels=4,
                                        injection_layer_ids=(0,), perceiver_num_layers=1),
}  # fmt: skip
"""By class: a config, alternatives, or a function that makes them of the classes beside it in the pipeline."""

SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "AmusedScheduler": dict(mask_token_id=31), "VQDiffusionScheduler": dict(num_vec_classes=17),
    "UniPCMultistepScheduler": dict(prediction_type="flow_prediction", use_flow_sigmas=True),
}  # fmt: skip


ARGUMENTS: Mapping[str, Any] = {
    "default_denoising_steps": 8, "default_processing_resolution": 64, "resolution": 64, 
}  # fmt: skip
"""Values of constructor parameters that are no components."""


def list_builders(cls: type) -> Iterator[Callable[[], Any]]:
    """Ways to build a pipeline of a class, of other networks each; the weights are the same every time."""
    hints = typing.get_type_hints(cls.__init__)
    parameters = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]
    options = {p.name: _list_classes(hints.get(p.name)) for p in parameters}
    kinds = {name: found[0] for name, found in options.items()}
    choices = [
        [make for kind in options[p.name] for make in _list_builders(p, {**kinds, p.name: kind})] for p in parameters
    ]
    for chosen in itertools.product(*choices):
        makers = {p.name: make for p, make in zip(parameters, chosen, strict=True) if make is not _leave_out}
        yield functools.partial(_build, cls, makers)


def _build(cls: type, makers: Mapping[str, Callable[[], Any]]) -> Any:
    torch.manual_seed(0)
    pipeline = cls(**{name: make() for name, make in makers.items()})
    for part in vars(pipeline).values():
        if isinstance(part, torch.nn.Module):
            _spread(part.eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class Passing:
    """A double of a safety checker that lets everything pass; the real one is not a part of diffusers."""

    def to(self, *where: Any) -> "Passing":
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, video: Any) -> Any:
        return video


def _leave_out() -> None:
    """A parameter keeps its default."""


def _list_classes(hint: Any) -> list[Any]:
    """The classes that an annotation names, but for lists of them."""
    if isinstance(hint, types.GenericAlias) or hint is type(None):
        return []
    inner = [kind for part in typing.get_args(hint) for kind in _list_classes(part)]
    known = [kind for kind in inner if kind.__module__.startswith(("diffusers", "transformers"))]
    return known or inner[:1] or [hint]


def _list_builders(parameter: inspect.Parameter, kinds: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Ways to make the value of a constructor's parameter."""
    kind, name = kinds[parameter.name], parameter.name
    if name.startswith("requires_") or name in ("add_watermarker", "enable_safety_checker"):
        yield lambda: False
    elif name == "safety_checker" and "Cosmos" in getattr(kind, "__name__", ""):
        yield Passing
    elif name in ("safety_checker", "watermarker"):
        yield lambda: None
    elif name in ARGUMENTS:
        yield lambda: ARGUMENTS[name]
    elif kind in (bool, int, float, str) or kind is None:
        yield _leave_out
    elif not isinstance(kind, type):
        yield _leave_out if parameter.default is not inspect.Parameter.empty else lambda: None
    elif "chedul" in kind.__name__:
        yield lambda: _build_scheduler(kind)
    elif kind.__module__.startswith("transformers") or hasattr(kind, "config_class"):
        yield lambda: texts.build(kind)
    elif hasattr(kind, "config_name") and issubclass(kind, torch.nn.Module):
        configs = MODELS.get(kind.__name__, {})
        configs = configs(kinds) if callable(configs) else configs
        for config in configs if isinstance(configs, list) else [configs]:
            yield lambda config=config: build_model(kind, config)
    else:
        yield lambda: kind()


def build_model(kind: type, config: Mapping[str, Any]) -> Any:
    """A network whose sizes are small by their names, but for those of ``config``."""
    parameters = inspect.signature(kind.__init__).parameters
    small = {name: value for name, value in SIZES.items() if name in parameters and parameters[name].default is not None}
    if hasattr(kind, "encode") or hasattr(kind, "decode"):
        small |= {name: 3 for name in ("in_channels", "out_channels") if name in parameters}
        widths = (p for p in parameters.values() if p.name.endswith("out_channels") and isinstance(p.default, tuple | list))
        small |= {p.name: (8,) * len(p.default) for p in widths}
    return kind(**{**small, **config})


def _build_scheduler(kind: Any) -> Any:
    name = kind.__name__
    name = {"KarrasDiffusionSchedulers": "DDIMScheduler", "SchedulerMixin": "DDIMScheduler"}.get(name, name)
    return getattr(diffusers, name)(**SCHEDULERS.get(name, {}))


def _spread(module: torch.nn.Module) -> None:
    """Replaces weights that start at zero, which would hide what they multiply."""
    for parameter in module.parameters():
        if parameter.ndim >= 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
