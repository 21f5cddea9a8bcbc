"""Reading bundles: whole ones open, others say what is wrong."""

import shutil

import pytest
import torch
from checkout import edit_json
from small_bundle import LATENTS, write_bundle

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Manifest, Session


@pytest.fixture
def bundle(digits_bundle, tmp_path):
    return shutil.copytree(digits_bundle("unet-flow"), tmp_path / "a bundle's copy, moved")


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_moved_bundle_opens(bundle):
    opened = Bundle.open(bundle)
    assert opened.manifest.latent_shape == (1, 32, 32)
    assert opened.manifest.prediction_type == "flow_prediction"
    assert set(opened.manifest.files) == {
        "graphs/fp32/denoiser.onnx",
        "graphs/fp32/denoiser.onnx.data",
        "graphs/fp32/parameters.json",
        "scheduler/scheduler_config.json",
        *(f"solvers/{n}.json" for n in (20, 30, 50)),
    }
    assert Manifest.from_json(opened.manifest.to_json()) == opened.manifest


def test_a_session_runs_the_graph_of_the_precision_that_is_asked_for(tmp_path):
    bundle = Bundle.open(write_bundle(tmp_path / "two", int8=0.2))
    call = {"sample": torch.ones(1, *LATENTS), "timestep": torch.zeros(1)}
    for asked, scale in ((None, 0.1), ("fp32", 0.1), ("int8", 0.2)):
        with Session(bundle, backend="onnxruntime", precision=asked) as session:
            torch.testing.assert_close(session.engine(**call), torch.full((1, *LATENTS), scale))
    assert bundle.describe().count("not measured") == 1
    with pytest.raises(ZeusError, match="got fp16 for a bundle with graphs in fp32, int8; expected one of these"):
        Session(bundle, backend="onnxruntime", precision="fp16")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda b: (b / "graphs/fp32/denoiser.onnx.data").unlink(), "without graphs/fp32/denoiser.onnx.data"),
        (lambda b: flip_last_byte(b / "graphs/fp32/denoiser.onnx.data"), "other content"),
        (lambda b: flip_last_byte(b / "graphs/fp32/denoiser.onnx"), "other content"),
        (lambda b: (b / "graphs/fp32/denoiser.onnx").write_bytes(b""), r"other content \(0 bytes\)"),
        (lambda b: (b / "manifest.json").unlink(), "without a readable manifest.json"),
        (lambda b: (b / "manifest.json").write_text("{"), "no strict JSON"),
        (lambda b: (b / "manifest.json").write_text("[]"), "got format None"),
        (lambda b: edit_json(b / "manifest.json", format=1), "got format 1; expected 2.*zeus-trt export MODEL"),
        (lambda b: edit_json(b / "manifest.json", inputs=3), "does not fit"),
    ],
)
def test_a_damaged_bundle_is_refused(bundle, damage, reason):
    damage(bundle)
    with pytest.raises(ZeusError, match=reason):
        Bundle.open(bundle)
