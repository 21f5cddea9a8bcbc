"""Sizes of tiny networks, by the class of the component: codecs of sound, vocoders, and what reads text for them."""

# ruff: noqa: C408  (a config reads better as keywords)

from collections.abc import Mapping
from typing import Any

from coverage_texts import LATENT, WIDTH

_UPSAMPLING = dict(
    in_channels=16, hidden_channels=8, upsample_kernel_sizes=[4, 4], upsample_factors=[2, 2], resnet_kernel_sizes=[3],
    resnet_dilations=[[1, 3, 5]],
)  # fmt: skip


def _oobleck(beside: Mapping[str, Any]) -> dict[str, Any]:
    rate = {"sampling_rate": 1280} if "condition_encoder" in beside else {}  # it reads 30 s of latents
    return dict(encoder_hidden_size=8, downsampling_ratios=[2, 64], channel_multiples=[1, 2], decoder_channels=8,
                decoder_input_channels=LATENT, **rate)  # fmt: skip


MODELS: Mapping[str, Any] = {
    "AceStepConditionEncoder": dict(
        hidden_size=32, text_hidden_dim=WIDTH, timbre_hidden_dim=LATENT, num_lyric_encoder_hidden_layers=1,
        num_timbre_encoder_hidden_layers=1, num_key_value_heads=2, head_dim=16),
    "AceStepTransformer1DModel": dict(hidden_size=32, num_hidden_layers=1, num_key_value_heads=2, head_dim=16,
                                      in_channels=3 * LATENT, audio_acoustic_hidden_dim=LATENT),
    "AutoencoderOobleck": _oobleck,
    "AutoencoderKLLTX2Audio": dict(
        base_channels=4, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, in_channels=2, output_channels=2,
        latent_channels=2, resolution=32, mid_block_add_attention=False, mel_bins=8),
    "AutoencoderSAME": dict(encoder_channels=8, encoder_transformer_depths=(1,), latent_dim=16, dim_heads=8),
    "LTX2TextConnectors": dict(
        text_proj_in_factor=3, video_connector_num_attention_heads=2, video_connector_attention_head_dim=16,
        video_connector_num_layers=1, video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=2, audio_connector_attention_head_dim=16, audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None, connector_rope_base_seq_len=32, rope_double_precision=False,
        rope_type="split"),
    "LTX2DurationHead": dict(video_cross_attention_dim=WIDTH, audio_cross_attention_dim=WIDTH, pooler_hidden_dim=16,
                             mlp_hidden_dim=16),
    "LTX2Vocoder": dict(_UPSAMPLING),
    "LTX2VocoderWithBWE": dict(
        _UPSAMPLING, bwe_in_channels=16, bwe_hidden_channels=8, bwe_upsample_kernel_sizes=[4, 4],
        bwe_upsample_factors=[2, 2], bwe_resnet_kernel_sizes=[3], bwe_resnet_dilations=[[1, 3, 5]],
        num_mel_channels=8),
    "LongCatAudioDiTVae": dict(channels=8, c_mults=[1, 2], strides=[2, 64], latent_dim=4, encoder_latent_dim=8,
                               downsampling_ratio=128),
    "MMAudioVAE": dict(mel_bins=16, latent_channels=20, hidden_channels=16, channel_multipliers=(1, 1, 1),
                       layers_per_block=1),
    "MMAudioVocoder": dict(num_mels=16, upsample_initial_channel=64, resblock_kernel_sizes=(3,),
                           resblock_dilation_sizes=((1, 3, 5),)),
    "StableAudio3DiTModel": dict(
        io_channels=16, local_add_cond_dim=17, embed_dim=32, depth=1, num_heads=2, cond_token_dim=WIDTH,
        global_cond_dim=WIDTH, timestep_features_dim=16, num_memory_tokens=4),
    "StableAudio3DurationEmbedder": dict(output_dim=WIDTH, fourier_dim=16),
}  # fmt: skip
