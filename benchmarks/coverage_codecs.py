"""Sizes of tiny networks, by the class of the component: autoencoders, priors, networks of sound, and the rest."""

# ruff: noqa: C408  (a config reads better as keywords)

from collections.abc import Mapping
from typing import Any

import coverage_sounds as sounds
from coverage_texts import LATENT, WIDTH

_CASCADE = dict(
    timestep_ratio_embedding_dim=8, patch_size=1, conditioning_dim=WIDTH, block_out_channels=(8, 8),
        num_attention_heads=(2, 2),
    down_num_layers_per_block=(1, 1), up_num_layers_per_block=(1, 1), in_channels=16, out_channels=16,
)  # fmt: skip

SHAPE = dict(
    embedding_dim=16, num_embeddings=8, clip_embed_dim=32, embedding_proj_dim=WIDTH, additional_embeddings=0,
    time_embed_dim=32, time_embed_act_fn="gelu", norm_in_type="layer", encoder_hid_proj_type=None, added_emb_type=None,
)  # fmt: skip
"""Of the prior of ShapE, whose latents are weights of a renderer."""

MODELS: Mapping[str, Any] = {
    "AutoencoderKLTemporalDecoder": dict(block_out_channels=(32,) * 4, down_block_types=("DownEncoderBlock2D",) * 4),
    "AutoencoderDC": dict(
        attention_head_dim=2, encoder_block_types="ResBlock", decoder_block_types="ResBlock",
            encoder_layers_per_block=(1,) * 4,
        decoder_layers_per_block=(1,) * 4, encoder_qkv_multiscales=((),) * 4, decoder_qkv_multiscales=((),) * 4,
        encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4, downsample_block_type="conv",
        upsample_block_type="interpolate"),
    "AutoencoderKLMochi": dict(latent_channels=12, encoder_block_out_channels=(32,) * 4,
        decoder_block_out_channels=(32,) * 4,
                               layers_per_block=(1,) * 5, latents_mean=[0.0] * 12, latents_std=[1.0] * 12),
    "AutoencoderKLCosmos": dict(encoder_block_out_channels=(8,) * 4, decode_block_out_channels=(8,) * 4,
        resolution=64,
                                attention_resolutions=(8,), latents_mean=[0.0] * 128, latents_std=[1.0] * 128),
    "AutoencoderKLLTXVideo": dict(
        latent_channels=LATENT, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
            layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5, decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4, timestep_conditioning=False),
    "AutoencoderKLLTX2Video": dict(
        block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,),
            decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,), decoder_spatio_temporal_scaling=(True,), decoder_inject_noise=(False, False),
        downsample_type=("spatial",), upsample_residual=(False,), upsample_factor=(1,)),
    "AutoencoderKLHunyuanImage": dict(block_out_channels=(32, 32, 32, 32), spatial_compression_ratio=8,
        sample_size=64,
                                      latent_channels=LATENT, in_channels=3, out_channels=3),
    "AutoencoderKLHunyuanImageRefiner": dict(block_out_channels=(32,) * 5, latent_channels=LATENT),
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
        dict(_CASCADE, patch_size=4, clip_text_pooled_in_channels=WIDTH, effnet_in_channels=16,
             pixel_mapper_in_channels=3, in_channels=LATENT, out_channels=LATENT),
    ],
    "PaellaVQModel": dict(bottleneck_blocks=1, num_vq_embeddings=16, latent_channels=4, in_channels=3,
        out_channels=3),
    "WuerstchenPrior": dict(c_in=16, c=8, c_cond=WIDTH, c_r=8, depth=1, nhead=2),
    "WuerstchenDiffNeXt": dict(c_in=4, c_out=4, c_r=8, patch_size=2, c_cond=32, c_hidden=[8, 8, 8, 8], nhead=[-1, 2,
        2, 2],
                               blocks=[1, 1, 1, 1], level_config=["CT"] * 4, clip_embd=WIDTH, effnet_embd=16,
                                   kernel_size=3,
                               inject_effnet=[False, True, True, True]),
    "ShapERenderer": dict(d_latent=16, d_hidden=8, n_output=12, param_shapes=((8, 93), (8, 8), (8, 8), (8, 8))),
    "UNetFlatConditionModel": dict(
        sample_size=8, block_out_channels=(8, 16), attention_head_dim=2,
        down_block_types=("CrossAttnDownBlockFlat", "DownBlockFlat"),
        up_block_types=("UpBlockFlat", "CrossAttnUpBlockFlat")),
    "UnCLIPTextProjModel": dict(clip_extra_context_tokens=4, clip_embeddings_dim=WIDTH, time_embed_dim=32,
                                cross_attention_dim=WIDTH),
    "StableUnCLIPImageNormalizer": dict(embedding_dim=WIDTH),
    "UniDiffuserModel": dict(text_dim=WIDTH, clip_img_dim=WIDTH, num_text_tokens=77, in_channels=4, out_channels=4,
        num_layers=2,
                             sample_size=8, patch_size=2, activation_fn="gelu", num_embeds_ada_norm=1000,
                                 norm_type="layer_norm"),
    "UniDiffuserTextDecoder": dict(prefix_length=77, prefix_inner_dim=WIDTH, prefix_hidden_dim=WIDTH,
        vocab_size=256, n_positions=128,
                                   n_embd=32, n_layer=1, n_head=2),
    "Transformer2DModel": dict(num_attention_heads=2, cross_attention_dim=WIDTH, sample_size=8, num_vector_embeds=17,
                               num_embeds_ada_norm=1000, activation_fn="geglu-approximate", norm_num_groups=4,
                               norm_elementwise_affine=True),
    "LearnedClassifierFreeSamplingEmbeddings": dict(learnable=False),
    "Ideogram4Transformer2DModel": dict(in_channels=16, adaln_dim=16, llm_features_dim=13 * WIDTH,
                                        mrope_section=(3, 3, 2)),
    "Krea2Transformer2DModel": dict(in_channels=16, num_key_value_heads=2, timestep_embed_dim=16,
        text_hidden_dim=WIDTH,
        num_text_layers=12, text_num_attention_heads=2, text_num_key_value_heads=2, text_intermediate_size=32,
        num_layerwise_text_blocks=1, num_refiner_text_blocks=1),
    "ErnieImageTransformer2DModel": dict(in_channels=16, out_channels=16, hidden_size=32, ffn_hidden_size=32,
        text_in_dim=WIDTH, rope_axes_dim=(4, 6, 6)),
    "NucleusMoEImageTransformer2DModel": dict(in_channels=16, out_channels=LATENT, num_experts=4,
        moe_intermediate_dim=16, mlp_ratio=2.0,
                                              axes_dims_rope=(4, 6, 6)),
    "QwenImage21Transformer2DModel": dict(in_channels=64, out_channels=64, context_in_dim=WIDTH),
    "AutoencoderKLQwenImage21": dict(
        in_channels=4, out_channels=4, base_dim=4, decoder_base_dim=4, z_dim=64, dim_mult=[1] * 5,
        latents_mean=[0.0] * 64, latents_std=[1.0] * 64),
    "JoyImageEditTransformer3DModel": dict(hidden_size=32, rope_dim_list=[4, 6, 6]),
    "JoyImageEditPlusTransformer3DModel": dict(hidden_size=32, rope_dim_list=[4, 6, 6]),
    "LongCatAudioDiTTransformer": dict(dit_dim=32, dit_depth=2, dit_heads=2, dit_text_dim=WIDTH, latent_dim=4),
    **sounds.MODELS,
    "ReduxImageEncoder": dict(redux_dim=WIDTH, txt_in_features=WIDTH),
    "BriaFibo2Transformer2DModel": dict(dim=32, axes_dims=(4, 6, 6), axes_lens=(2048, 64, 64), in_channels=4,
                                        cap_feat_dim=3 * WIDTH,
                                        injection_layer_ids=(0,), perceiver_num_layers=1),
}  # fmt: skip
