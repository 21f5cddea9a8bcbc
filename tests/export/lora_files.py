"""Tiny pipelines with adapters, and LoRA files of them."""

import peft
import torch
from diffusers.utils import convert_state_dict_to_kohya
from pipelines import FAMILIES
from safetensors.torch import save_file

TARGETS = ("to_q", "to_v")


def make(family, name="ink", scale=0.5, size=None, targets=TARGETS, **config):
    """A pipeline of a family with an active adapter, and its denoiser.

    Args:
        size: Of the adapter's weights; by default they are as peft draws them.
    """
    pipeline = FAMILIES[family].make()
    denoiser = find_denoiser(pipeline)
    torch.manual_seed(sum(map(ord, name)))
    settings = {"r": 2, "lora_alpha": 4, "init_lora_weights": False, **config}
    denoiser.add_adapter(peft.LoraConfig(target_modules=list(targets), **settings), name)
    noise = torch.Generator().manual_seed(5)
    for key, parameter in denoiser.named_parameters():
        if "lora_" in key and size:
            parameter.data = size * torch.randn(parameter.shape, generator=noise)
    pipeline.set_adapters(name, scale)
    return pipeline, denoiser


def find_denoiser(pipeline):
    return pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer


def save(pipeline, folder, name="ink"):
    """Writes an adapter as ``save_lora_weights`` does, with its settings beside its weights; returns the file."""
    denoiser = find_denoiser(pipeline)
    kind = "unet" if hasattr(pipeline, "unet") else "transformer"
    weights = peft.get_peft_model_state_dict(denoiser, adapter_name=name)
    settings = {f"{kind}_lora_adapter_metadata": denoiser.peft_config[name].to_dict()}
    type(pipeline).save_lora_weights(folder, **{f"{kind}_lora_layers": weights}, **settings)
    return folder / "pytorch_lora_weights.safetensors"


def save_kohya(pipeline, file, name="ink", alpha=4.0):
    """Writes an adapter of a UNet under kohya's names; returns the file."""
    weights = peft.get_peft_model_state_dict(find_denoiser(pipeline), adapter_name=name)
    kohya = convert_state_dict_to_kohya({f"unet.{key}": value for key, value in weights.items()})
    kohya |= {key: torch.tensor(alpha) for key in kohya if key.endswith(".alpha")}
    save_file({key: value.contiguous() for key, value in kohya.items()}, file)
    return file
