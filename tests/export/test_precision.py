"""Halves: what is cast, what stays float32, what overflows, and what helps."""

import shutil

import onnx
import pytest
import tiny_unets
import torch
from pipelines import FAMILIES
from safetensors.torch import load_file, save_file

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.export.capture import capture
from zeus_trt.export.precision import cast_capture, cast_module, check_precision, find_precision

SD = FAMILIES["sd15"]
HOT = "down_blocks.0.resnets.0"


def make():
    """Stable Diffusion's pipeline around a UNet of one level."""
    torch.manual_seed(0)
    pipeline = tiny_unets.build_sd(unet=tiny_unets.one_level_unet().eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def overheat(unet):
    """Lets a convolution inside of a block overflow fp16; the norm behind it brings the values back."""
    with torch.no_grad():
        unet.get_submodule(HOT).conv1.weight.mul_(1e7)
    return unet


@pytest.fixture(scope="module")
def hot():
    pipeline = make()
    overheat(pipeline.unet)
    return pipeline


def export_hot(pipeline, folder, **settings):
    return export_model(pipeline, folder, settings=SD.settings, steps=(), precision="fp16", **settings)


def list_types(bundle):
    kinds = {spec.name: spec.dtype for spec in bundle.manifest.inputs}
    graph = onnx.load(bundle.graph(), load_external_data=False).graph
    return kinds, {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer if tensor.dims}


@pytest.mark.parametrize(
    ("precision", "dtype", "backends"),
    [
        ("bf16", "bfloat16", {"eager-bf16"}),
        pytest.param("fp16", "float16", {"eager-fp16", "onnxruntime"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.extra
def test_a_half_is_verified_and_its_manifest_says_how(family_bundle, precision, dtype, backends):
    bundle = family_bundle("flux", precision)
    types, weights = list_types(bundle)
    assert set(types.values()) == {"float32"}  # the solver's
    assert dtype.upper() in weights
    assert "DOUBLE" not in weights
    manifest = bundle.manifest
    assert manifest.precision == precision
    assert {record.backend for record in manifest.find_graph().verification} == backends
    assert {record.dtype for record in manifest.find_graph().verification} == {"float32"}
    assert all(1e-6 < record.relative_error < 8e-2 for record in manifest.find_graph().verification)


def test_bare_models_too(tiny_model, tmp_path):
    bundle = export_model(tiny_model, tmp_path / "bundle", precision="fp16", steps=())
    types, weights = list_types(bundle)
    assert list(types.values()) == ["float32", "float32", "int64"]
    assert "FLOAT16" in weights
    assert "DOUBLE" not in weights
    assert bundle.manifest.precision == "fp16"
    records = bundle.manifest.find_graph().verification
    assert {record.shape[0] for record in records} == {1, 2, 3, 4, 6}
    assert {record.backend for record in records} == {"eager-fp16", "onnxruntime"}
    assert all(1e-6 < record.relative_error < 8e-2 for record in records)


@pytest.mark.extra
def test_overflow_is_named_with_the_blocks_that_help(hot, tmp_path):
    with pytest.raises(ZeusError) as caught:
        export_hot(hot, tmp_path / "bundle")
    message = str(caught.value)
    assert "non-finite values from the engine, eager-fp16, at latents (4, 4, 8, 12)" in message
    assert f"first in {HOT}.conv1;" in message
    assert message.endswith(f"or use bf16: {HOT}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extra
def test_blocks_kept_in_fp32_do_not_overflow(hot, tmp_path):
    before = {name: value.clone() for name, value in hot.unet.state_dict().items()}
    bundle = export_hot(hot, tmp_path / "bundle", keep_fp32=("down_blocks.0.resnets.*",))
    assert list_types(bundle)[1] >= {"FLOAT", "FLOAT16"}
    assert bundle.manifest.find_graph().keep_fp32 == ("down_blocks.0.resnets.*",)
    assert all(record.relative_error < 1e-2 for record in bundle.manifest.find_graph().verification)
    after = hot.unet.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())


def test_a_kept_module_is_cast_around(hot):
    twin = cast_module(hot.unet, torch.float16, (HOT, f"{HOT}.conv1"))
    block = twin.get_submodule(HOT)
    assert {parameter.dtype for parameter in block.parameters()} == {torch.float32}
    assert twin.conv_in.weight.dtype == torch.float16
    sample, embedding = torch.randn(1, 8, 4, 4).half(), torch.randn(1, 32).half()
    output = block(sample, embedding)
    assert output.dtype == torch.float16
    assert torch.isfinite(output).all()
    assert {parameter.dtype for parameter in hot.unet.parameters()} == {torch.float32}


@pytest.mark.extra
def test_nothing_is_kept_where_the_whole_model_overflows(tmp_path):
    pipeline = make()
    with torch.no_grad():
        pipeline.unet.conv_in.weight.mul_(1e7)
    with pytest.raises(ZeusError, match=r"first in conv_in; .* export in bf16 or fp32"):
        export_hot(pipeline, tmp_path / "bundle")


def test_weights_that_are_not_finite_are_named(tmp_path):
    pipeline = make()
    name = "up_blocks.0.resnets.0.conv1"
    torch.nn.init.constant_(pipeline.unet.get_submodule(name).bias, float("nan"))
    with pytest.raises(ZeusError, match=rf"eager model at latents \(4, 4, 8, 12\), first in {name}"):
        export_hot(pipeline, tmp_path / "bundle")


def test_float32_shares_the_weights(hot):
    twin = cast_capture(capture(hot, SD.settings), "fp32").denoiser
    assert twin is not hot.unet
    assert twin.conv_in.weight is hot.unet.conv_in.weight


@pytest.mark.parametrize(("made", "asked"), [("bf16", "fp16"), ("fp16", "bf16")])
def test_the_other_half_is_refused_unless_forced(made, asked, tmp_path):
    unet = tiny_unets.tiny_unet().to({"bf16": torch.bfloat16, "fp16": torch.float16}[made])
    with pytest.raises(ZeusError, match=f"got {asked} for weights in {made}"):
        check_precision(unet, asked)
    check_precision(unet, asked, force=True)
    for fine in ("fp32", made):
        check_precision(unet, fine)
    unet.save_pretrained(tmp_path)
    assert find_precision(type(unet).from_pretrained(tmp_path, torch_dtype=torch.float32)) == made


def test_the_files_count_whatever_they_were_loaded_into(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    file = model / "unet" / "diffusion_pytorch_model.safetensors"

    save_file({name: value.bfloat16() for name, value in load_file(file).items()}, file)
    with pytest.raises(ZeusError, match="got fp16 for weights in bf16, which may overflow"):
        export_model(model, tmp_path / "bundle", precision="fp16")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"precision": "int8"}, "precision: got int8; expected one of fp32, fp16, bf16"),
        ({"precision": "fp16", "keep_fp32": ("nothing.*",)}, r"keep_fp32: got nothing.\*, which fits no module"),
    ],
)
def test_what_is_no_precision_or_no_module(tiny_model, tmp_path, settings, reason):
    with pytest.raises(ZeusError, match=reason):
        export_model(tiny_model, tmp_path / "bundle", **settings)
    assert list(tmp_path.iterdir()) == []
