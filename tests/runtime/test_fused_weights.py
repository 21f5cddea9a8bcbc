"""An adapter in the weights of a graph, without diffusers, peft and onnx: the sum, and what is refused by name."""

import pytest
import torch
from small_adapter import FACTOR, PLACES, make_delta, write_adapter
from small_bundle import LATENTS, list_file

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.adapter import check_name
from zeus_trt.runtime.bundle.fused_weights import fuse

INPUTS = {"sample": torch.ones(2, *LATENTS), "timestep": torch.zeros(2)}


def open_adapter(folder, *args, **settings):
    return Bundle.open(write_adapter(folder / "bundle", *args, **settings)).with_adapter("ink")


@pytest.mark.parametrize("tensors", [FACTOR, {"scale.delta": make_delta(1.0)}], ids=["factors", "delta"])
def test_the_weight_is_the_sum(tmp_path, tensors):
    bundle = open_adapter(tmp_path, tensors)
    torch.testing.assert_close(fuse(bundle)["scale"].value, torch.full(LATENTS, 0.6))
    with Session(bundle, backend="onnxruntime") as session:
        torch.testing.assert_close(session.engine(**INPUTS), torch.full((2, *LATENTS), 0.6))
    with Session(bundle.path, backend="onnxruntime") as session:
        torch.testing.assert_close(session.engine(**INPUTS), torch.full((2, *LATENTS), 0.1))


def test_parameters_that_share_a_weight_change_alike(tmp_path):
    places = {**PLACES, "twin": PLACES["scale"]}
    with pytest.raises(ZeusError, match="a change of scale that is not that of twin; expected the same of both"):
        fuse(open_adapter(tmp_path / "a", places=places))
    tensors = {"scale.delta": make_delta(1.0), "twin.delta": make_delta(2.0)}
    with pytest.raises(ZeusError, match="a change of scale that is not that of twin"):
        fuse(open_adapter(tmp_path / "b", tensors, {"scale": 1.0, "twin": 1.0}, places))
    weights = fuse(open_adapter(tmp_path / "c", tensors, {"scale": 1.0, "twin": 0.5}, places))
    assert weights["scale"].parameters == ("scale", "twin")


BROKEN = {
    "folded": ({"places": {}}, "changes scale; expected parameters that the graph holds as they are"),
    "a shape": ({"tensors": {"scale.delta": torch.ones(3)}}, r"a change of \(3,\) of scale; expected .*1x4x4"),
    "factors that do not fit": (
        {"tensors": {**FACTOR, "scale.down": torch.ones(2, 16)}},
        "no fitting factors of scale",
    ),
    "no factors": ({"tensors": {"other.delta": torch.ones(3)}}, "no fitting factors of scale"),
    "infinity": ({"tensors": {"scale.delta": make_delta(3e38)}, "scaling": {"scale": 2.0}}, "out of the range of"),
    "no such weight": (
        {"places": {"scale": {"initializer": "gone", "transposed": False}}},
        "weight gone has no numbers",
    ),
    "an integer": (
        {"places": {"scale": {"initializer": "shape", "transposed": False}}},
        "shape has no numbers in float",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_fused_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ZeusError, match=message):
        Session(open_adapter(tmp_path, **changes), backend="onnxruntime")


def test_a_quantized_graph_takes_no_adapter(tmp_path):
    bundle = open_adapter(tmp_path, precision="int8")
    with pytest.raises(ZeusError, match=r"got ink for a graph in int8.*Export the pipeline with the adapter active"):
        Session(bundle, backend="onnxruntime", precision="int8")


def test_a_bundle_of_an_older_export_is_refused(tmp_path):
    bundle = open_adapter(tmp_path)
    del bundle.manifest.files["graphs/fp32/parameters.json"]
    with pytest.raises(ZeusError, match=r"no graphs/fp32/parameters\.json in the manifest"):
        fuse(bundle)


def test_a_weight_that_ends_before_its_numbers_is_refused(tmp_path):
    bundle = open_adapter(tmp_path)
    bundle.graph().with_name("denoiser.onnx.data").write_bytes(b"123")
    list_file(bundle.path, "graphs/fp32/denoiser.onnx.data")
    with pytest.raises(ZeusError, match=r"denoiser\.onnx\.data ends before its weights do"):
        fuse(Bundle.open(bundle.path).with_adapter("ink"))


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "-a", "..", "é", "a" * 65, 3])
def test_names_that_no_folder_or_module_has(name):
    with pytest.raises(ZeusError, match="adapter: got the name"):
        check_name(name)
