"""Writes a whole Stable Diffusion pipeline, tiny and with random weights: something to try commands on, offline.

python examples/tiny_pipeline.py FOLDER

Its pictures are noise. What holds for it holds for a trained one: `zeus-trt export`, `run`, `compare`, `calibrate`.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import diffusers
import torch
import transformers


def build_tokenizer(folder: Path) -> transformers.CLIPTokenizer:
    """A tokenizer whose words are single letters."""
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=16
    )


def build_pipeline(folder: Path) -> diffusers.StableDiffusionPipeline:
    """The pipeline; ``folder`` takes the tokenizer's files."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer(folder)
    text = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=len(tokenizer) - 2,
        eos_token_id=len(tokenizer) - 1,
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8,) * 4,
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )
    return diffusers.StableDiffusionPipeline(
        unet=unet,
        vae=vae,
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        build_pipeline(Path(folder)).save_pretrained(sys.argv[1])
