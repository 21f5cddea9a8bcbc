"""Tiny random pipelines around video transformers, and how to run them."""

import diffusers as d
from tiny_inputs import TEXT, mask, rand, text


def build_wan(**config):
    transformer = d.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=TEXT, freq_dim=16,
        ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    return d.WanPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer,
        scheduler=d.FlowMatchEulerDiscreteScheduler(), **config,
    )  # fmt: skip


def run_video(pipeline, *, batch, height, width, frames, prompt, seed=0, **kwargs):
    return pipeline(
        **text(batch, prompt, seed), height=height, width=width, num_frames=frames, num_inference_steps=3,
        output_type="latent", **kwargs,
    )  # fmt: skip


def build_cogvideox():
    transformer = d.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=TEXT, num_layers=2, sample_width=16, sample_height=16, sample_frames=9, max_text_seq_length=8,
        use_rotary_positional_embeddings=True,
    )  # fmt: skip
    return d.CogVideoXPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer, scheduler=d.CogVideoXDDIMScheduler()
    )


def build_ltx():
    transformer = d.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
        num_layers=2, caption_channels=TEXT,
    )  # fmt: skip
    return d.LTXPipeline(
        scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None, tokenizer=None,
        transformer=transformer,
    )  # fmt: skip


def run_ltx(pipeline, *, batch, prompt, seed=0, **kwargs):
    return run_video(
        pipeline, batch=batch, prompt=prompt, seed=seed, prompt_attention_mask=mask(batch, prompt, seed),
        negative_prompt_attention_mask=mask(batch, prompt, seed + 1), **kwargs,
    )  # fmt: skip


def build_hunyuan():
    transformer = d.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, text_embed_dim=TEXT, pooled_projection_dim=TEXT, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    names = ("text_encoder", "tokenizer", "vae", "text_encoder_2", "tokenizer_2")
    return d.HunyuanVideoPipeline(
        transformer=transformer, scheduler=d.FlowMatchEulerDiscreteScheduler(), **dict.fromkeys(names)
    )


def run_hunyuan(pipeline, *, batch, height, width, frames, prompt, seed=0):
    return pipeline(
        prompt_embeds=rand(seed, batch, prompt, TEXT), pooled_prompt_embeds=rand(seed + 1, batch, TEXT),
        prompt_attention_mask=mask(batch, prompt, seed), height=height, width=width, num_frames=frames,
        num_inference_steps=3, output_type="latent",
    )  # fmt: skip
