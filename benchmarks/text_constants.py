"""The part of a denoiser's work that a run could do once: keys, values and embeddings of the text alone.

Counts floating-point operations of one call at real sizes, on no device and without weights.

python benchmarks/text_constants.py
"""

import json
import re
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch.utils.flop_counter import FlopCounterMode

OF_TEXT = re.compile(r"attn2\.to_[kv]$|attn2\.add_[kv]_proj$|context_embedder|text_embedder")


def build_sd15() -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion 1.5 at 512 x 512, two rows."""
    model = diffusers.UNet2DConditionModel(cross_attention_dim=768, sample_size=64)
    return model, {
        "sample": torch.empty(2, 4, 64, 64),
        "timestep": torch.empty(2),
        "encoder_hidden_states": torch.empty(2, 77, 768),
    }


def build_sdxl() -> tuple[Any, dict[str, Any]]:
    """SDXL at 1024 x 1024, two rows."""
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        cross_attention_dim=2048,
        attention_head_dim=(5, 10, 20),
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
        sample_size=128,
    )
    return model, {
        "sample": torch.empty(2, 4, 128, 128),
        "timestep": torch.empty(2),
        "encoder_hidden_states": torch.empty(2, 77, 2048),
        "added_cond_kwargs": {"text_embeds": torch.empty(2, 1280), "time_ids": torch.empty(2, 6)},
    }


def build_sd3() -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion 3 at 1024 x 1024, two rows."""
    model = diffusers.SD3Transformer2DModel(
        sample_size=128,
        num_layers=24,
        num_attention_heads=24,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        pos_embed_max_size=192,
    )
    return model, {
        "hidden_states": torch.empty(2, 16, 128, 128),
        "encoder_hidden_states": torch.empty(2, 333, 4096),
        "pooled_projections": torch.empty(2, 2048),
        "timestep": torch.empty(2),
    }


def build_flux() -> tuple[Any, dict[str, Any]]:
    """FLUX.1 at 1024 x 1024, one row."""
    return diffusers.FluxTransformer2DModel(guidance_embeds=True), {
        "hidden_states": torch.empty(1, 4096, 64),
        "encoder_hidden_states": torch.empty(1, 512, 4096),
        "pooled_projections": torch.empty(1, 768),
        "timestep": torch.empty(1),
        "guidance": torch.empty(1),
        "img_ids": torch.empty(4096, 3),
        "txt_ids": torch.empty(512, 3),
    }


def build_wan() -> tuple[Any, dict[str, Any]]:
    """Wan 2.1 of 1.3 billion weights, 81 frames of 480 x 832, one row."""
    model = diffusers.WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)
    return model, {
        "hidden_states": torch.empty(1, 16, 21, 60, 104),
        "timestep": torch.empty(1),
        "encoder_hidden_states": torch.empty(1, 512, 4096),
    }


def measure(build: Callable[[], tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """TFLOP of a call, and the part of it that reads the text alone."""
    of_text = 0

    def add(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal of_text
        of_text += 2 * inputs[0].shape[-1] * output.numel()

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model, call = build()
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and OF_TEXT.search(name):
                module.register_forward_hook(add)
        model(**call)
    total = counter.get_total_flops()
    return {"model": build.__doc__, "tflop": round(total / 1e12, 2), "of_text_percent": round(100 * of_text / total, 2)}


if __name__ == "__main__":
    for build in (build_sd15, build_sdxl, build_sd3, build_flux, build_wan):
        print(json.dumps(measure(build)))
