"""Weights that a folder does not have, and adapters that were saved with a model."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from zeus_trt.errors import ZeusError
from zeus_trt.export import load_model
from zeus_trt.export.missing_weights import check_weights

FILE = "diffusion_pytorch_model.safetensors"


def rename(folder, old, new):
    weights = load_file(folder / FILE)
    weights[new] = weights.pop(old)
    save_file(weights, folder / FILE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("conv_out.base_layer.weight", r"saved with the adapter .*unload_lora_weights"),
        ("conv_out.lost", r"without conv_out.weight and 0 other weights"),
    ],
)
def test_a_model_folder_without_a_weight(tiny_model, tmp_path, name, reason):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    rename(folder / "unet", "conv_out.weight", name)
    with pytest.raises(ZeusError, match=reason):
        load_model(folder)


def test_a_pipeline_whose_weights_were_left_on_meta(tmp_path):
    (tmp_path / "unet").mkdir()
    weights = {"base_layer.weight": torch.ones(2, 2), "lora_A.weight": torch.ones(1, 2), "bias": torch.ones(2)}
    save_file(weights, tmp_path / "unet" / FILE)
    whole = SimpleNamespace(components={"unet": torch.nn.Linear(2, 2), "scheduler": None})
    check_weights(whole, tmp_path)
    with pytest.raises(ZeusError, match="unet, which was saved with adapters loaded, so that bias has another name"):
        check_weights(SimpleNamespace(components={"unet": torch.nn.Linear(2, 2, device="meta")}), tmp_path)
