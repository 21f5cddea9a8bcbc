"""Verifying a bundle again, against the model that it was exported from."""

import onnx
import pytest
from checkout import edit_json
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export import verify_bundle
from zeus_trt.files import digest_file
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec


@pytest.fixture(scope="module")
def bare(export_tiny):
    return export_tiny()


@pytest.fixture(scope="module")
def inpaint(family_bundle):
    return family_bundle("inpaint")


def change_weights(bundle):
    """Halves one tensor of the graph, and signs it again."""
    path = bundle.path / "graphs/fp32/denoiser.onnx"
    graph = onnx.load(path)
    bias = next(tensor for tensor in graph.graph.initializer if "conv_out.bias" in tensor.name)
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))
    onnx.save(graph, path)
    entry = {"size": path.stat().st_size, "sha256": digest_file(path)}
    files = {name: vars(file) for name, file in bundle.manifest.files.items()}
    edit_json(bundle.path / "manifest.json", files={**files, "graphs/fp32/denoiser.onnx": entry})


def test_the_records_are_those_of_the_export(bare, tiny_model, inpaint):
    assert verify_bundle(bare, tiny_model) == bare.manifest.find_graph().verification
    family = FAMILIES["inpaint"]
    records = verify_bundle(inpaint.path, family.make(), settings=family.settings, unseen=family.unseen)
    found = inpaint.manifest.find_graph().verification
    kept, lifted = found[: len(records)], found[len(records) :]
    assert [record.shape for record in records] == [record.shape for record in kept]
    assert [dict(record.setting) for record in lifted] == [{"prompt": 1}]  # which showed that one token is no limit
    run = [{}, *map(dict, family.unseen)]
    assert [dict(record.setting) for record in records[: 4 * len(run) : 4]] == run
    rest = [dict(record.setting) for record in records[4 * len(run) :]]
    assert rest == [*({name: value} for name, value in family.varied.items()), {"height": 96, "width": 96}]


def test_sizes_are_chosen(inpaint):
    family = FAMILIES["inpaint"]
    records = verify_bundle(inpaint, family.make(), settings=family.settings, sizes=[(80, 96), (64, 64)])
    assert [record.shape[2:] for record in records[::4]] == [(10, 12), (8, 8)]
    assert records[0].setting == {"height": 80, "width": 96}
    with pytest.raises(ZeusError, match="which the pipeline refuses"):
        verify_bundle(inpaint, family.make(), settings=family.settings, sizes=[(81, 96)])


def test_the_solver_steps_a_part_of_the_latents(inpaint):
    manifest = Bundle.open(inpaint.path).manifest
    assert manifest.latents.axes == manifest.output.axes == ("batch", 4, "height", "width")
    constant = TensorSpec("sample_constant", "float32", ("batch", 5, "height", "width"), "constant")
    assert manifest.inputs[2] == constant
    assert manifest.constant_axis == 1
    with pytest.raises(ZeusError, match="whose height, width may vary"):
        _ = manifest.latent_shape


def test_another_model_or_graph_is_refused(tiny_model, export_tiny, inpaint, bare):
    bundle = export_tiny()
    change_weights(bundle)
    with pytest.raises(ZeusError, match="relative error"):
        verify_bundle(bundle.path, tiny_model)
    with pytest.raises(ZeusError, match="model: got weights with digest"):
        verify_bundle(inpaint, tiny_model)
    with pytest.raises(ZeusError, match="sizes: got some for a BarePipeline, which runs at one size"):
        verify_bundle(bare, tiny_model, sizes=[(64, 64)])
    with pytest.raises(ZeusError, match="which does not load"):
        verify_bundle(bare, "nobody/nothing")
