"""Sizes of tiny networks, by the class of the component: UNets and what is made for them."""

# ruff: noqa: C408  (a config reads better as keywords)

import inspect
from collections.abc import Mapping
from typing import Any

import diffusers
from coverage_texts import LATENT, WIDTH

_UNET = dict(
    sample_size=8, block_out_channels=(8, 16), attention_head_dim=2,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip

_UNET_XL = dict(
    _UNET, cross_attention_dim=2 * WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
    projection_class_embeddings_input_dim=6 * 8 + WIDTH, use_linear_projection=True,
)  # fmt: skip


def _unets(beside: Mapping[str, Any]) -> list[dict[str, Any]]:
    if getattr(beside.get("controlnet"), "__name__", "") == "ControlNetXSAdapter":
        return [dict(_unet_of(beside), layers_per_block=2, use_linear_projection=True)]  # as the adapter has
    if "text_encoder_2" in beside:
        return [_UNET_XL, dict(_UNET_XL, in_channels=2 * LATENT), dict(_UNET_XL, time_cond_proj_dim=16)]
    simple = dict(_UNET, down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"), up_block_types=(
        "SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        attention_head_dim=4, resnet_time_scale_shift="scale_shift", out_channels=2 * LATENT)  # fmt: skip
    pixels = dict(simple, in_channels=3, out_channels=6, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_proj")
    kandinsky2 = dict(
        simple,
        encoder_hid_dim=WIDTH,
        encoder_hid_dim_type="image_proj",
        addition_embed_type="image",
        cross_attention_dim=WIDTH,
    )
    if "super_res_first" in beside:
        return [dict(simple, in_channels=3, out_channels=6, class_embed_type="identity")]
    if "movq" in beside:
        both = dict(
            simple, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_image_proj", addition_embed_type="text_image"
        )
        hint = dict(kandinsky2, addition_embed_type="image_hint", in_channels=2 * LATENT)
        return [kandinsky2, both, dict(kandinsky2, in_channels=9), dict(both, in_channels=9), hint]
    if "watermarker" in beside and "low_res_scheduler" not in beside:
        return [pixels, dict(pixels, in_channels=6, class_embed_type="timestep")]
    if "image_noising_scheduler" in beside:
        return [dict(_UNET, class_embed_type="projection", projection_class_embeddings_input_dim=2 * WIDTH)]
    if "low_res_scheduler" in beside:
        return [dict(_UNET, in_channels=LATENT + 3, num_class_embeds=1000)]
    if "vocoder" in beside:
        return [dict(_UNET, class_embed_type="simple_projection", projection_class_embeddings_input_dim=WIDTH,
                     class_embeddings_concat=True, cross_attention_dim=(8, 16))]  # fmt: skip
    return [
        _UNET, dict(_UNET, in_channels=9), dict(_UNET, in_channels=2 * LATENT), dict(_UNET, in_channels=5),
        dict(_UNET, time_cond_proj_dim=16),
        dict(_UNET, in_channels=2 * LATENT, out_channels=2 * LATENT + 1, time_cond_proj_dim=16),
        dict(_UNET, attention_type="gated"), dict(_UNET, attention_type="gated-text-image"),
        dict(_UNET, in_channels=2 * LATENT, out_channels=LATENT + 1, time_cond_proj_dim=128 + WIDTH),
    ]  # fmt: skip


_PIXELS = dict(
    sample_size=16, block_out_channels=(8, 16), attention_head_dim=4, in_channels=3, out_channels=3,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip


def _unet_of(beside: Mapping[str, Any]) -> dict[str, Any]:
    return _UNET_XL if "text_encoder_2" in beside else _UNET


def _share(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """What of a UNet's config its ControlNet has too."""
    shared = {name: value for name, value in config.items() if name in inspect.signature(kind.__init__).parameters}
    return {**shared, "conditioning_embedding_out_channels": (4, 4, 4, 8)}


MODELS: Mapping[str, Any] = {
    "UNet2DConditionModel": _unets,
    "UNet2DModel": [dict(_PIXELS), dict(_PIXELS, in_channels=6), dict(_PIXELS, in_channels=LATENT,
        out_channels=LATENT)],
    "UNet1DModel": dict(sample_size=256, sample_rate=64, in_channels=2, out_channels=2,
                        extra_in_channels=64,
                        block_out_channels=(32, 32, 32), norm_num_groups=4),
    "ControlNetModel": lambda beside: _share(_unet_of(beside), diffusers.ControlNetModel),
    "ControlNetUnionModel": lambda beside: _share(_unet_of(beside), diffusers.ControlNetUnionModel)
        | dict(num_trans_channel=8, num_proj_channel=8, num_trans_head=2),
    "SparseControlNetModel": dict(
        block_out_channels=(8, 16), down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
            attention_head_dim=2,
        motion_num_attention_heads=2, conditioning_channels=3, use_simplified_condition_embedding=False,
        conditioning_embedding_out_channels=(4, 4, 4, 8),
        concat_conditioning_mask=False),
    "ControlNetXSAdapter": lambda beside: dict(
        block_out_channels=(4, 8), num_attention_heads=2, base_block_out_channels=(8, 16),
        conditioning_embedding_out_channels=(4, 4, 4, 8), time_embedding_mix=0.5, learn_time_embedding=True,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        cross_attention_dim=_unet_of(beside).get("cross_attention_dim", WIDTH)),
    "AudioLDM2UNet2DConditionModel": dict(_UNET, cross_attention_dim=(WIDTH, WIDTH)),
    "UNet3DConditionModel": dict(
        sample_size=8, block_out_channels=(8, 16), attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    "I2VGenXLUNet": dict(
        sample_size=8, block_out_channels=(8, 16), attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    "UNetSpatioTemporalConditionModel": dict(
        sample_size=8, block_out_channels=(32, 32), num_attention_heads=(2, 2), in_channels=2 * LATENT, num_frames=9,
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=24,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")),
}  # fmt: skip
