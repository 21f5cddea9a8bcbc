"""Writes a whole pipeline, tiny and with random weights: something to try commands on, offline.

python examples/tiny_pipeline.py FOLDER [FAMILY]

FAMILY is sd (default), sdxl, sd3 or flux, whose pictures are noise, or wan or cogvideox, whose videos are. What holds
for it holds for a trained one: `zeus-trt export`, `run`, `compare`, `calibrate`. Give videos a size and a number of
frames, such as `--size 64x64 --frames 9`.
"""

# ruff: noqa: C408  (a config reads better as keywords)

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import torch
import transformers

WIDTH = 32  # of text embeddings
LETTERS = [chr(code) for code in range(33, 127)]


def build_clip_tokenizer(folder: Path) -> transformers.CLIPTokenizer:
    """A tokenizer whose words are single letters; ``folder`` takes its files."""
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=16
    )


def build_t5_tokenizer() -> transformers.T5Tokenizer:
    """The same for T5."""
    words = ["<pad>", "</s>", "<unk>", "\u2581", *LETTERS]
    return transformers.T5Tokenizer(vocab=[(word, 0.0) for word in words], extra_ids=0, model_max_length=512)


def build_clip(vocab_size: int, kind: Any = transformers.CLIPTextModel) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=vocab_size, hidden_size=WIDTH, intermediate_size=WIDTH, projection_dim=WIDTH, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=16, bos_token_id=vocab_size - 2, eos_token_id=vocab_size - 1,
    )  # fmt: skip
    return kind(config)


def build_t5(config: Any, model: Any, vocab_size: int, width: int = WIDTH) -> Any:
    return model(config(vocab_size=vocab_size, d_model=width, d_kv=8, d_ff=width, num_layers=1, num_heads=2))


def build_vae(**changes: Any) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(
        block_out_channels=(8,) * 4, norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, **changes,
    )  # fmt: skip


def build_unet(**changes: Any) -> diffusers.UNet2DConditionModel:
    config = dict(
        sample_size=32, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=WIDTH,
        attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return diffusers.UNet2DConditionModel(**{**config, **changes})


def build_sd(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    return diffusers.StableDiffusionPipeline(
        unet=build_unet(), vae=build_vae(), text_encoder=build_clip(len(clip)), tokenizer=clip,
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def build_sdxl(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    unet = build_unet(
        cross_attention_dim=2 * WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH, use_linear_projection=True,
    )  # fmt: skip
    return diffusers.StableDiffusionXLPipeline(
        unet=unet, vae=build_vae(), scheduler=diffusers.EulerDiscreteScheduler(), add_watermarker=False,
        text_encoder=build_clip(len(clip)), tokenizer=clip,
        text_encoder_2=build_clip(len(clip), transformers.CLIPTextModelWithProjection), tokenizer_2=clip,
    )  # fmt: skip


def build_sd3(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=2 * WIDTH, caption_projection_dim=16,
        pooled_projection_dim=2 * WIDTH, pos_embed_max_size=32,
    )  # fmt: skip
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, vae=build_vae(shift_factor=0.0),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=build_clip(len(clip), transformers.CLIPTextModelWithProjection), tokenizer=clip,
        text_encoder_2=build_clip(len(clip), transformers.CLIPTextModelWithProjection), tokenizer_2=clip,
        text_encoder_3=build_t5(transformers.T5Config, transformers.T5EncoderModel, len(t5), 2 * WIDTH),
        tokenizer_3=t5,
    )  # fmt: skip


def build_flux(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    return diffusers.FluxPipeline(
        transformer=transformer, vae=build_vae(shift_factor=0.0),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=build_clip(len(clip)), tokenizer=clip,
        text_encoder_2=build_t5(transformers.T5Config, transformers.T5EncoderModel, len(t5)), tokenizer_2=t5,
    )  # fmt: skip


def build_wan(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=WIDTH, freq_dim=16,
        ffn_dim=32, num_layers=2, rope_max_seq_len=64,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    return diffusers.WanPipeline(
        transformer=transformer, vae=vae, tokenizer=t5,
        text_encoder=build_t5(transformers.UMT5Config, transformers.UMT5EncoderModel, len(t5)),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )  # fmt: skip


def build_cogvideox(clip: Any, t5: Any) -> diffusers.DiffusionPipeline:
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=WIDTH, num_layers=2, sample_width=16, sample_height=16, sample_frames=9,
        use_rotary_positional_embeddings=True,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=(8,) * 4, latent_channels=4, layers_per_block=1, norm_num_groups=4,
        sample_height=128, sample_width=128,
    )  # fmt: skip
    return diffusers.CogVideoXPipeline(
        transformer=transformer, vae=vae, tokenizer=t5,
        text_encoder=build_t5(transformers.T5Config, transformers.T5EncoderModel, len(t5)),
        scheduler=diffusers.CogVideoXDDIMScheduler(
            prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing"
        ),
    )  # fmt: skip


FAMILIES = {
    "sd": build_sd,
    "sdxl": build_sdxl,
    "sd3": build_sd3,
    "flux": build_flux,
    "wan": build_wan,
    "cogvideox": build_cogvideox,
}


def write_pipeline(folder: Path, family: str = "sd") -> None:
    """Writes a pipeline; the weights are the same every time."""
    torch.manual_seed(0)
    with TemporaryDirectory() as scratch:
        FAMILIES[family](build_clip_tokenizer(Path(scratch)), build_t5_tokenizer()).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes a tiny pipeline with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("family", nargs="?", default="sd", choices=FAMILIES)
    write_pipeline(**vars(parser.parse_args()))
