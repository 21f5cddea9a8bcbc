"""Weights that a folder does not have, and adapters that were saved with a model."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from zeus_trt.errors import ZeusError
from zeus_trt.export import load_pipeline

FILE = "diffusion_pytorch_model.safetensors"


def rename(folder, old, new):
    weights = load_file(folder / FILE)
    weights[new] = weights.pop(old)
    save_file(weights, folder / FILE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("conv_out.base_layer.weight", r"saved with the adapter .*unload_lora_weights"),
        ("conv_out.lost", r"whose unet was saved without conv_out.weight"),
    ],
)
def test_a_model_folder_without_a_weight(tiny_model, tmp_path, name, reason):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    rename(folder / "unet", "conv_out.weight", name)
    with pytest.raises(ZeusError, match=reason):
        load_pipeline(folder)
