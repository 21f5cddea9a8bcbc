"""``zeus_trt.export`` of objects, denoisers, and files of weights."""

import importlib.util
import shutil

import diffusers
import numpy as np
import pytest
import torch
from foreign_graphs import write_foreign
from safetensors.torch import load_file, save_file
from tiny_images import build_flux

import zeus_trt
from zeus_trt.errors import ZeusError
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.source import load_denoiser, load_single_file, open_source


def equal_weights(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def single(tiny_pipeline, tmp_path_factory):
    """A pipeline's folder without its denoiser's weights, and these in a file."""
    folder = tmp_path_factory.mktemp("single") / "config"
    shutil.copytree(tiny_pipeline, folder)
    weights = folder / "unet/diffusion_pytorch_model.safetensors"
    file = folder.parent / "weights.safetensors"
    save_file(load_file(weights), file)
    weights.unlink()
    return file, folder


def test_a_denoiser_with_its_scheduler_makes_the_bundle_of_its_folder(tiny_model, export_tiny, tmp_path):
    pipeline, folder = load_pipeline(tiny_model), export_tiny()
    alone = zeus_trt.export(pipeline.denoiser, tmp_path / "c", scheduler=pipeline.scheduler, steps=())
    assert alone.manifest.weights_sha256 == folder.manifest.weights_sha256
    assert alone.manifest.inputs == folder.manifest.inputs
    assert alone.scheduler_config == folder.scheduler_config


def test_it_imports_graphs_of_others(tmp_path):
    graph = write_foreign(tmp_path / "flow.onnx", "flow", "sigma")
    options = {"latents": "x", "timestep": "t", "timestep_is": "sigma", "parameterization": "flow", "steps": ()}
    assert zeus_trt.export(graph, tmp_path / "a", **options).manifest.prediction_type == "flow_prediction"
    with pytest.raises(ZeusError, match=r"config: got .* for an ONNX graph"):
        zeus_trt.export(graph, tmp_path / "b", config=tmp_path, **options)
    with pytest.raises(ZeusError, match=r"model: got .*, a bundle; expected a model\. Build its engines"):
        zeus_trt.export(tmp_path / "a", tmp_path / "b")


def test_a_file_of_weights_makes_the_bundle_of_its_pipeline(single, tiny_pipeline, tmp_path):
    file, folder = single
    pipeline = load_single_file(file, folder)
    assert type(pipeline).__name__ == "StableDiffusionPipeline"
    assert equal_weights(pipeline.unet, load_pipeline(tiny_pipeline).unet)


@pytest.mark.slow
def test_its_export_is_verified(single, tmp_path):
    file, folder = single
    bundle = zeus_trt.export(file, tmp_path / "bundle", config=folder, sizes=[(64, 64)], steps=())
    assert bundle.manifest.model == "weights"
    assert max(record.relative_error for record in bundle.manifest.graphs[0].verification) < 1e-4


def test_a_file_with_the_folder_of_a_bare_denoiser(tmp_path):
    flux = build_flux().transformer
    flux.save_pretrained(tmp_path / "config/transformer")
    diffusers.FlowMatchEulerDiscreteScheduler().save_pretrained(tmp_path / "config/scheduler")
    shutil.move(tmp_path / "config/transformer/diffusion_pytorch_model.safetensors", tmp_path / "flux.safetensors")
    pipeline = load_single_file(tmp_path / "flux.safetensors", tmp_path / "config")
    assert equal_weights(pipeline.denoiser, flux)
    assert type(pipeline.scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs the package gguf")
def test_gguf_weights_are_dequantized(tmp_path):
    import gguf

    flux = build_flux().transformer
    flux.save_pretrained(tmp_path / "config/transformer")
    writer = gguf.GGUFWriter(tmp_path / "flux.gguf", "flux")
    halves = {}
    for name, value in flux.state_dict().items():
        halves[name] = value.float().numpy()
        is_matrix = value.ndim == 2 and value.shape[1] % 32 == 0
        kind = gguf.GGMLQuantizationType.Q8_0 if is_matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(halves[name], kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = load_denoiser(tmp_path / "flux.gguf", tmp_path / "config")[1]
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert not any(hasattr(parameter, "quant_type") for parameter in loaded.parameters())
    for name, value in loaded.state_dict().items():
        np.testing.assert_allclose(value.numpy(), halves[name], atol=0.02 * np.abs(halves[name]).max() + 1e-9)


def test_files_of_weights_that_do_not_fit_are_one_sentence(single, tmp_path):
    file, folder = single
    with pytest.raises(ZeusError, match=r"config: got nothing for weights\.safetensors; expected the folder"):
        open_source(file)
    with pytest.raises(ZeusError, match="expected a file of weights that exists"):
        open_source(tmp_path / "none.safetensors", folder)
    with pytest.raises(ZeusError, match=r"config: got .*; expected a folder with unet or transformer"):
        open_source(file, tmp_path)
    with pytest.raises(ZeusError, match=r"config: got .* for a model that has its own"):
        open_source(folder, folder)
    with pytest.raises(ZeusError, match="scheduler: got nothing for a FluxTransformer2DModel"):
        open_source(build_flux().transformer)
    (tmp_path / "broken.safetensors").write_bytes(b"none")
    with pytest.raises(ZeusError, match=r"broken\.safetensors, which does not load as a UNet2DConditionModel"):
        open_source(tmp_path / "broken.safetensors", folder)
    part = load_file(file)
    save_file({name: part[name] for name in list(part)[:20]}, tmp_path / "part.safetensors")
    with pytest.raises(ZeusError, match=r"part\.safetensors"):
        open_source(tmp_path / "part.safetensors", folder)
