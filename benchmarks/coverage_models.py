"""Sizes of tiny networks, by the class of the component: transformers and their ControlNets.

A size is small by the name of its parameter (``SIZES``); a class that needs more has a row in ``MODELS``. Where
pipelines need different networks of one class, such as an inpainting denoiser, the row holds alternatives.
"""

# ruff: noqa: C408  (a config reads better as keywords)

from collections.abc import Mapping
from typing import Any

import coverage_codecs as codecs
import coverage_texts as texts
import coverage_unets as unets
from coverage_texts import LATENT, WIDTH

SIZES: Mapping[str, Any] = {
    "attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 2, "num_single_layers": 1,
        "num_refiner_layers": 1,
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

_VAE = dict(
    block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    in_channels=3, out_channels=3,
)  # fmt: skip
_VQ = dict(_VAE, block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
           up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=16)  # fmt: skip
_SD3 = dict(sample_size=32, in_channels=16, out_channels=16, pooled_projection_dim=2 * WIDTH)
_Z_CONTROL = dict(dim=32, control_in_dim=LATENT, control_layers_places=[0, 1], control_refiner_layers_places=[0],
                  add_control_noise_refiner="control_noise_refiner")  # fmt: skip
_PACKED = dict(in_channels=4 * LATENT, out_channels=None)


_WAN = [
    dict(attention_head_dim=12), dict(attention_head_dim=12, in_channels=2 * LATENT + 4),
    dict(attention_head_dim=12, in_channels=2 * LATENT + 4, image_dim=WIDTH, added_kv_proj_dim=24),
    dict(attention_head_dim=12, in_channels=2 * LATENT),
]  # fmt: skip
_KANDINSKY = dict(
    in_visual_dim=LATENT, out_visual_dim=LATENT, time_dim=16, model_dim=32, ff_dim=32, axes_dims=(4, 6, 6)
)


def _vae_of(beside: Mapping[str, Any]) -> Any:
    name = getattr(beside.get("transformer"), "__name__", "")
    width = 16 if name.startswith(("LongCat", "SD3")) else LATENT  # their pipelines fix it
    vae = dict(_VAE, shift_factor=0.0, latent_channels=width)
    if "vocoder" in beside:
        return dict(vae, in_channels=1, out_channels=1)
    return [vae, dict(vae, in_channels=6, out_channels=6)] if "unet" in beside else vae


_LTX2 = dict(
    cross_attention_dim=32, audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=2,
    audio_attention_head_dim=8, audio_cross_attention_dim=16, rope_double_precision=False, rope_type="split",
)  # fmt: skip

MODELS: Mapping[str, Any] = {
    "AutoencoderKL": _vae_of,
    "VQModel": [dict(_VQ, vq_embed_dim=LATENT), dict(_VQ, latent_channels=3, vq_embed_dim=3)],
    "MotionAdapter": dict(block_out_channels=(8, 16), motion_num_attention_heads=2, motion_norm_num_groups=4,
                          motion_layers_per_block=1),
    "T2IAdapter": dict(channels=[8, 16], num_res_blocks=1, downscale_factor=8, in_channels=3),
    "PriorTransformer": lambda beside: codecs.SHAPE if "shap_e_renderer" in beside
        else dict(embedding_dim=WIDTH, num_embeddings=texts.LENGTH),
    "FluxTransformer2DModel": [
        dict(_PACKED, guidance_embeds=True), dict(in_channels=8 * LATENT, out_channels=4 * LATENT,
            guidance_embeds=True),
        dict(in_channels=8 * LATENT + 256, out_channels=4 * LATENT, guidance_embeds=True),
    ],
    "FluxControlNetModel": dict(in_channels=4 * LATENT),
    "Flux2Transformer2DModel": [dict(_PACKED, axes_dims_rope=(4, 4, 4, 4), joint_attention_dim=3 * WIDTH)],
    "BriaTransformer2DModel": dict(in_channels=4 * LATENT), "OvisImageTransformer2DModel": dict(_PACKED,
        out_channels=4 * LATENT),
    "LongCatImageTransformer2DModel": dict(in_channels=64), "ChromaTransformer2DModel": dict(_PACKED),
    "BriaFiboTransformer2DModel": dict(in_channels=LATENT, joint_attention_dim=2 * WIDTH),
    "SD3Transformer2DModel": _SD3,
    "SD3ControlNetModel": [_SD3, dict(_SD3, extra_conditioning_channels=1)],
    "WanTransformer3DModel": _WAN, "SkyReelsV2Transformer3DModel": _WAN, "ChronoEditTransformer3DModel": _WAN,
    "AnyFlowTransformer3DModel": dict(attention_head_dim=12),
        "AnyFlowFARTransformer3DModel": dict(attention_head_dim=12,
        chunk_partition=(1, 1, 1)),
    "HeliosTransformer3DModel": dict(attention_head_dim=16, rope_dim=(4, 6, 6)),
    "WanVACETransformer3DModel": dict(attention_head_dim=12, vace_layers=[0, 1], vace_in_channels=2 * LATENT + 64),
    "WanAnimateTransformer3DModel": dict(
        attention_head_dim=12, in_channels=2 * LATENT + 4, latent_channels=LATENT, image_dim=WIDTH,
        motion_encoder_channel_sizes={str(2 ** i): 8 for i in range(2, 7)}, motion_encoder_size=64,
            motion_style_dim=8,
        motion_dim=4, motion_encoder_dim=16, face_encoder_hidden_dim=16, face_encoder_num_heads=2,
        inject_face_latents_blocks=2),
    "AutoencoderKLWan": dict(in_channels=3, out_channels=3), "AutoencoderKLQwenImage": dict(input_channels=3),
    "QwenImageTransformer2DModel": [dict(in_channels=4 * LATENT, num_attention_heads=2),
                                    dict(in_channels=4 * LATENT, use_additional_t_cond=True)],
    "QwenImageControlNetModel": [dict(in_channels=4 * LATENT), dict(in_channels=4 * LATENT,
        extra_condition_channels=LATENT)],
    "ZImageTransformer2DModel": dict(dim=32, axes_dims=[4, 6, 6], axes_lens=[256, 64, 64]),
    "ZImageControlNetModel": [_Z_CONTROL, dict(_Z_CONTROL, control_in_dim=2 * LATENT + 1)],
    "Lumina2Transformer2DModel": dict(sample_size=8, hidden_size=32, axes_dim_rope=(4, 6, 6), axes_lens=(256, 64,
        64)),
    "LuminaNextDiT2DModel": dict(sample_size=8, hidden_size=32, num_kv_heads=2),
    "PixArtTransformer2DModel": dict(sample_size=8, out_channels=2 * LATENT, num_attention_heads=2,
        attention_head_dim=16),
    "DiTTransformer2DModel": dict(sample_size=8, out_channels=2 * LATENT, num_embeds_ada_norm=1000),
    "HunyuanDiT2DModel": dict(sample_size=8, patch_size=2, in_channels=LATENT, hidden_size=32, text_len=texts.LENGTH),
    "HunyuanDiT2DControlNetModel": dict(sample_size=8, patch_size=2, in_channels=LATENT, hidden_size=32,
                                        transformer_num_layers=2, text_len=texts.LENGTH),
    "LatteTransformer3DModel": dict(
        sample_size=8, patch_size=2, in_channels=LATENT, out_channels=2 * LATENT, cross_attention_dim=WIDTH,
            num_layers=2,
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
    "EasyAnimateTransformer3DModel": [dict(in_channels=LATENT, out_channels=LATENT, patch_size=2, mmdit_layers=1,
        num_layers=1),
        dict(in_channels=2 * LATENT, out_channels=LATENT, patch_size=2, num_layers=1, mmdit_layers=1),
        dict(in_channels=2 * LATENT + 1, out_channels=LATENT, patch_size=2, num_layers=1, mmdit_layers=1)],
    "HunyuanVideoTransformer3DModel": [dict(guidance_embeds=True), dict(guidance_embeds=False,
        in_channels=2 * LATENT),
        dict(guidance_embeds=False, in_channels=2 * LATENT + 1, image_condition_type="latent_concat"),
        dict(guidance_embeds=True, image_condition_type="token_replace")],
    "HunyuanVideoFramepackTransformer3DModel": dict(has_image_proj=True, image_proj_dim=WIDTH,
        has_clean_x_embedder=True),
    "HunyuanVideo15Transformer3DModel": [
        dict(in_channels=2 * LATENT + 1, text_embed_2_dim=WIDTH, image_embed_dim=WIDTH, target_size=64,
            task_type="t2v"),
        dict(in_channels=2 * LATENT + 1, text_embed_2_dim=WIDTH, image_embed_dim=WIDTH, target_size=64,
            task_type="i2v")],
    "HunyuanImageTransformer2DModel": [
        dict(text_embed_2_dim=WIDTH, rope_axes_dim=(8, 8), patch_size=(1, 1)),
        dict(in_channels=4 * LATENT, out_channels=2 * LATENT, patch_size=(1, 1, 1), rope_axes_dim=(4, 6, 6))],
    "MochiTransformer3DModel": dict(in_channels=12, out_channels=None, max_sequence_length=16),
    "MotifVideoTransformer3DModel": [dict(in_channels=2 * LATENT + 1, rope_axes_dim=(4, 6, 6)),
        dict(in_channels=2 * LATENT + 1, rope_axes_dim=(4, 6, 6), image_embed_dim=WIDTH)],
    "SanaTransformer2DModel": [dict(sample_size=8), dict(sample_size=8, guidance_embeds=True,
        qk_norm="rms_norm_across_heads")],
    "SanaControlNetModel": dict(sample_size=8), "SanaVideoTransformer3DModel": dict(sample_size=8,
        attention_head_dim=16),
    "SanaWMTransformer3DModel": dict(hidden_size=32, linear_head_dim=16, chunk_plucker_post_attn_blocks=1,
        chunk_plucker_channels=12,
        image_size=64,
                                     mixed_precision="no"),
    "PRXTransformer2DModel": [dict(hidden_size=32, num_heads=2, depth=1, axes_dim=[8, 8]),
                              dict(hidden_size=32, num_heads=2, depth=1, axes_dim=[8, 8], in_channels=3,
                                  bottleneck_size=8)],
    "CosmosControlNetModel": dict(n_controlnet_blocks=2, in_channels=LATENT + 2, latent_channels=LATENT + 2,
        model_channels=32, max_size=(8, 32, 32), encoder_hidden_states_channels=WIDTH, use_crossattn_projection=True,
        crossattn_proj_in_channels=2 * WIDTH),
    "CosmosTransformer3DModel": [dict(max_size=(8, 32, 32), encoder_hidden_states_channels=WIDTH),
        dict(max_size=(8, 32, 32), in_channels=LATENT + 1), dict(max_size=(8, 32, 32), in_channels=LATENT + 1,
        use_crossattn_projection=True, crossattn_proj_in_channels=2 * WIDTH, encoder_hidden_states_channels=WIDTH,
        controlnet_block_every_n=1)],
    "Cosmos3OmniTransformer": dict(hidden_size=32, head_dim=16, num_hidden_layers=2, num_key_value_heads=2,
        latent_channel=LATENT, patch_latent_dim=4 * LATENT, rope_axes_dim=(3, 3, 2), vocab_size=256),
    "LTXVideoTransformer3DModel": dict(attention_head_dim=16, cross_attention_dim=32),
    "LTX2VideoTransformer3DModel": [_LTX2, dict(_LTX2, use_keyframes_abs_pos_embedding=True)],
    "Kandinsky3UNet": dict(time_embedding_dim=16, groups=2, attention_head_dim=4, block_out_channels=(8, 16),
        layers_per_block=3),
    "Kandinsky5Transformer3DModel": [dict(_KANDINSKY), dict(_KANDINSKY, visual_cond=True)],
    "Kandinsky6Transformer3DModel": dict(_KANDINSKY, ca_rope=True, cross_gates=True, fix_modulation=True),
    "UVit2DModel": dict(hidden_size=32, cond_embed_dim=WIDTH, micro_cond_encode_dim=8, micro_cond_embed_dim=40,
                        encoder_hidden_size=WIDTH, vocab_size=32, codebook_size=16, in_channels=32,
                            block_out_channels=32,
                        block_num_heads=2, num_hidden_layers=1, intermediate_size=32, sample_size=8),
    "OmniGenTransformer2DModel": dict(hidden_size=32, num_key_value_heads=2, time_step_dim=4, vocab_size=256,
        pad_token_id=0,
        rope_scaling={"long_factor": list(range(1, 9)), "short_factor": list(range(1, 9))}),
    "AuraFlowTransformer2DModel": dict(sample_size=8, attention_head_dim=16, caption_projection_dim=32),
    "AudioLDM2ProjectionModel": dict(text_encoder_dim=WIDTH, text_encoder_1_dim=WIDTH, langauge_model_dim=WIDTH),
    "StableAudioDiTModel": dict(sample_size=16, num_key_value_attention_heads=2, time_proj_dim=8,
                                global_states_input_dim=2 * WIDTH, cross_attention_input_dim=WIDTH),
    "StableAudioProjectionModel": dict(text_encoder_dim=WIDTH, conditioning_dim=WIDTH, min_value=0, max_value=512),
    **codecs.MODELS,
    **unets.MODELS,
}  # fmt: skip
"""By class: a config, alternatives, or a function that makes them of the classes beside it in the pipeline."""
