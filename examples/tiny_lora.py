"""Writes a LoRA with random weights for a pipeline: something to try commands on, offline. Needs peft.

python examples/tiny_lora.py PIPELINE -o FOLDER [--seed 1]
"""

import argparse
from pathlib import Path

import diffusers
import peft
import torch


def write_lora(pipeline: Path, output: Path, seed: int = 1) -> None:
    """Writes ``pytorch_lora_weights.safetensors``, which ``load_lora_weights`` reads."""
    loaded = diffusers.DiffusionPipeline.from_pretrained(pipeline)
    part = "unet" if hasattr(loaded, "unet") else "transformer"
    denoiser = getattr(loaded, part)
    torch.manual_seed(seed)
    settings = peft.LoraConfig(r=2, lora_alpha=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    denoiser.add_adapter(settings)
    weights = {f"{part}_lora_layers": peft.get_peft_model_state_dict(denoiser)}
    loaded.save_lora_weights(output, **weights)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes a LoRA with random weights.")
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    write_lora(**vars(parser.parse_args()))
