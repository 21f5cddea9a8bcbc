"""Exporting model folders: verified bundles, or nothing at all."""

import json
import shutil

import diffusers
import numpy as np
import onnx
import pytest
import torch
from bare_inputs import example_inputs
from checkout import MODELS, edit_json

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model, load_pipeline
from zeus_trt.export.agreement import Case, compare
from zeus_trt.export.folder import write_solvers
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine

AS_FLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("unet-epsilon", "unet-v")]  # the same network


@pytest.mark.parametrize("name", ["unet-flow", "dit-flow", *AS_FLOW])
def test_the_graph_agrees_with_eager_at_unseen_batches(digits_bundle, name):
    bundle = Bundle.open(digits_bundle(name))
    denoiser, engine = load_pipeline(MODELS / f"digits-{name}").denoiser, OnnxRuntimeEngine(bundle.graph())
    for batch in (1, 3, 4, 5):
        inputs = example_inputs(denoiser, batch, seed=99)
        assert len(set(inputs["timestep"].tolist())) == batch
        with torch.inference_mode():
            torch.testing.assert_close(engine(**inputs), denoiser(**inputs)[0], rtol=1e-4, atol=1e-4)
    assert {record.shape[0] for record in bundle.manifest.find_graph().verification} == {1, 2, 3, 4, 6}
    assert all(0 < record.relative_error < 1e-5 for record in bundle.manifest.find_graph().verification)


def test_the_graph_has_the_names_and_axes_of_the_manifest(digits_bundle):
    bundle = Bundle.open(digits_bundle("dit-flow"))
    graph = onnx.load(bundle.graph(), load_external_data=False).graph
    read = [
        (value.name, [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.output)
    ]
    assert read == [(spec.name, list(spec.axes)) for spec in (*bundle.manifest.inputs, bundle.manifest.output)]
    assert [spec.name for spec in bundle.manifest.inputs] == ["hidden_states", "timestep", "class_labels"]
    assert bundle.manifest.output.name == "model_output"


def test_the_graph_names_no_place_of_this_machine(digits_bundle):
    assert b"site-packages" not in Bundle.open(digits_bundle("unet-flow")).graph().read_bytes()


def test_prediction_types_are_those_of_diffusers(digits_bundle, family_bundle):
    bundles = Bundle.open(digits_bundle("dit-flow")), family_bundle("sd15")
    assert [bundle.manifest.prediction_type for bundle in bundles] == ["flow_prediction", "epsilon"]


@pytest.mark.slow
def test_a_model_of_v_says_so(digits_bundle):
    assert Bundle.open(digits_bundle("unet-v")).manifest.prediction_type == "v_prediction"


def test_refused_when_it_disagrees_and_nothing_is_left(tiny_model, tmp_path):
    with pytest.raises(ZeusError, match="relative error"):
        export_model(tiny_model, tmp_path / "bundle", tolerance=0.0)
    assert list(tmp_path.iterdir()) == []


def test_refused_when_not_finite(tiny_model, tmp_path):
    denoiser = load_pipeline(tiny_model).denoiser
    torch.nn.init.constant_(denoiser.conv_out.bias, float("inf"))
    denoiser.save_pretrained(tmp_path / "model" / "unet")
    shutil.copytree(tiny_model / "scheduler", tmp_path / "model" / "scheduler")
    with pytest.raises(ZeusError, match="non-finite values from the eager model"):
        export_model(tmp_path / "model", tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_comparing_catches_an_engine_that_is_off_by_little(tiny_model):
    denoiser = load_pipeline(tiny_model).denoiser
    inputs = example_inputs(denoiser, 3)

    def off(**inputs):  # a test double of an engine
        with torch.inference_mode():
            return denoiser(**inputs)[0] * 1.001

    with pytest.raises(ZeusError, match=r"relative error of 1.00e-03"):
        compare(denoiser, off, [Case(inputs, inputs)], "double")


@pytest.mark.extra
def test_overwrite_replaces_a_bundle_and_nothing_else(tiny_model, tmp_path):
    first = export_model(tiny_model, tmp_path / "bundle")
    with pytest.raises(ZeusError, match="exists"):
        export_model(tiny_model, tmp_path / "bundle")
    (tmp_path / "bundle" / "stray").touch()
    again = export_model(tiny_model, tmp_path / "bundle", overwrite=True, null_label=0)
    assert not (tmp_path / "bundle" / "stray").exists()
    assert (first.manifest.labels.null, again.manifest.labels.null) == (3, 0)
    assert first.manifest.files["graphs/fp32/denoiser.onnx"] == again.manifest.files["graphs/fp32/denoiser.onnx"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(ZeusError, match="is no bundle"):
        export_model(tiny_model, tmp_path / "folder", overwrite=True)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: shutil.rmtree(m / "unet"), "or a folder with unet or transformer"),
        (lambda m: shutil.rmtree(m / "scheduler"), "or a folder with unet or transformer"),
        (lambda m: truncate(m / "unet" / "diffusion_pytorch_model.safetensors"), "do not load"),
        (lambda m: (m / "unet" / "diffusion_pytorch_model.safetensors").unlink(), "do not load"),
        (lambda m: edit_json(m / "unet" / "config.json", _class_name="NoSuchModel"), "got the class 'NoSuchModel'"),
        (lambda m: (m / "unet" / "config.json").write_text("{"), "config.json"),
        (lambda m: edit_json(m / "unet" / "config.json", _class_name="UNet2DConditionModel"), "expected"),
    ],
)
def test_what_is_no_model_is_refused_and_nothing_is_left(tiny_model, tmp_path, damage, reason):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    damage(model)
    with pytest.raises(ZeusError, match=reason):
        export_model(model, tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_null_label_outside_the_model_is_refused(tiny_model, tmp_path):
    with pytest.raises(ZeusError, match=r"null_label: got 4; expected 0..3"):
        export_model(tiny_model, tmp_path / "bundle", null_label=4)


def test_the_manifest_names_what_made_it(digits_bundle):
    manifest = json.loads((digits_bundle("unet-flow") / "manifest.json").read_text())
    assert {"zeus-trt", "torch", "diffusers", "onnx", "onnxruntime"} <= set(manifest["versions"])
    assert manifest["denoiser_config"]["block_out_channels"] == [32, 64, 96]


def test_a_schedule_shifted_by_the_size_is_not_stored(tmp_path):
    """FLUX: it is traced for each run, whose size gives mu."""
    write_solvers(diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), (20,), tmp_path)
    assert (tmp_path / "scheduler" / "scheduler_config.json").is_file()
    assert not any((tmp_path / "solvers").iterdir())


def test_the_number_of_threads_that_trace_bounds_no_batch(tiny_model, export_tiny, tmp_path):
    """On one thread torch's convolution compares the batch with 16 to choose a kernel."""
    torch.set_num_threads(2)  # until the end of the module, see conftest; the kept bundle was traced on one
    for bundle in (export_tiny(), export_model(tiny_model, tmp_path / "bundle", steps=())):
        assert [(symbol.name, symbol.maximum) for symbol in bundle.manifest.symbols] == [("batch", None)]


@pytest.mark.parametrize("name", ["unet-flow", "dit-flow"])
def test_every_parameter_is_found_in_the_graph(digits_bundle, name):
    bundle, denoiser = Bundle.open(digits_bundle(name)), load_pipeline(MODELS / f"digits-{name}").denoiser
    found = json.loads(bundle.read("graphs/fp32/parameters.json"))["parameters"]
    graph = onnx.load(bundle.graph())
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    weights = dict(denoiser.named_parameters())
    unused = {key for key in weights if key not in found}
    assert all("timestep_embedder" in key or "norm1" in key for key in unused), unused
    for key, place in found.items():
        if key in weights:
            weight = weights[key].detach().T if place["transposed"] else weights[key].detach()
            assert np.array_equal(held[place["initializer"]].ravel(), weight.contiguous().numpy().ravel())
