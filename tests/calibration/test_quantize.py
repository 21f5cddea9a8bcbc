"""A graph in 8 bits beside the float graph: near enough and repeatable, or nothing has changed."""

import json
import os
from collections import Counter

import pytest
import torch
from golden_files import GOLDEN

from zeus_trt import measure_sensitivity, quantize
from zeus_trt.calibration.graph_error import check_samples
from zeus_trt.calibration.recording import Recorder
from zeus_trt.errors import ZeusError
from zeus_trt.export import verify_bundle
from zeus_trt.export.build import plan_engine
from zeus_trt.runtime import Bundle, Session

FEW = {"steps": 4, "num_trajectories": 1, "num_held_out": 1, "min_psnr": 10.0, "max_error": 2.0}


def list_content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def find_structure(data):
    """Keys, lengths and types of JSON data."""
    if isinstance(data, dict):
        return {name: find_structure(value) for name, value in data.items()}
    return [find_structure(one) for one in data] if isinstance(data, list) else type(data)


@pytest.fixture
def bundle(export_tiny):
    return export_tiny().path


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_adds_a_graph_that_runs(bundle, precision):
    report = quantize(bundle, precision=precision, **FEW)
    opened = Bundle.open(bundle)
    assert [graph.precision for graph in opened.manifest.graphs] == ["fp32", precision]
    assert [step.step for step in report.steps] == [0, 1, 2, 3]
    assert {step.branches for step in report.steps} == {("both",)}
    assert {"float", "weights", "whole"} == set(report.layers.values())
    with Session(bundle, backend=f"onnxruntime:{precision}") as session:
        assert session.backend == f"onnxruntime:{precision}"
        made = session.generate(session.label_images([1], 1), num_steps=4, ratio=0, seed=[5], guidance_scale=2.0)
    assert torch.isfinite(made.latents).all()
    stored = json.loads(opened.read(f"graphs/{precision}/quantization.json"))
    assert stored["ranges"] == {name: list(ends) for name, ends in report.ranges.items()}
    assert find_structure(stored) == find_structure(json.loads((GOLDEN / "quantization.json").read_text()))


def test_same_seed_gives_the_same_bytes(bundle, export_tiny):
    other = export_tiny().path
    for folder in (bundle, other):
        quantize(folder, **FEW)
    graphs = [list_content(path / "graphs" / "int8") for path in (bundle, other)]
    assert graphs[0] == graphs[1]


def test_records_the_steps_of_the_plan_alone(bundle):
    report = quantize(bundle, **{**FEW, "steps": 6}, plan="FFXFXF")
    assert [step.step for step in report.steps] == [0, 1, 3, 5]
    assert Counter(step.calls for step in report.steps) == {1: 4}


@pytest.mark.parametrize(
    "options",
    [
        {"min_psnr": 900.0}, {"max_error": 0.0}, {"keep": ("no.such.layer",)}, {"keep": ("*",)},
        {"plan": "FFF"}, {"precision": "int4"},
    ],
)  # fmt: skip
def test_a_refusal_leaves_the_bundle_alone(bundle, options):
    before = list_content(bundle)
    with pytest.raises(ZeusError):
        quantize(bundle, **{**FEW, **options})
    assert list_content(bundle) == before
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


@pytest.mark.parametrize("lost", [{2}, {0, 1, 2, 3}])
def test_a_step_without_a_call_leaves_the_bundle_alone(bundle, monkeypatch, lost):
    before, tag = list_content(bundle), Recorder.tag
    monkeypatch.setattr(Recorder, "tag", lambda self, step: None if step.index in lost else tag(self, step))
    with pytest.raises(ZeusError, match=f"got 0 calls at step {min(lost)} of 1 samples"):
        quantize(bundle, **FEW)
    assert list_content(bundle) == before


def test_weights_with_a_second_name(bundle, tmp_path):
    os.link(bundle / "graphs/fp32/denoiser.onnx.data", tmp_path / "second")
    quantize(bundle, **FEW)
    assert [graph.precision for graph in Bundle.open(bundle).manifest.graphs] == ["fp32", "int8"]


def test_verify_compares_every_graph(bundle, tiny_model):
    quantize(bundle, **FEW)
    records = verify_bundle(bundle, tiny_model, tolerance=2.0)
    assert {record.backend for record in records} == {"onnxruntime", "onnxruntime:int8"}
    with pytest.raises(ZeusError, match="on onnxruntime:int8; expected at most 1e-04"):
        verify_bundle(bundle, tiny_model, tolerance=1e-4)


def test_an_interrupt_leaves_the_bundle_alone(bundle):
    def interrupt(calls):
        raise KeyboardInterrupt

    before = list_content(bundle)
    with pytest.raises(KeyboardInterrupt):
        quantize(bundle, **FEW, on_calls=interrupt)
    assert list_content(bundle) == before


def test_keeps_a_block_in_float(bundle):
    report = quantize(bundle, **FEW, keep=("down_blocks.0",))
    assert {kind for name, kind in report.layers.items() if name.startswith("down_blocks.0")} == {"float"}


def test_sensitivity_changes_nothing(bundle):
    before = list_content(bundle)
    blocks = measure_sensitivity(bundle, steps=4, num_trajectories=1, num_held_out=1)
    assert [block.error for block in blocks] == sorted((block.error for block in blocks), reverse=True)
    assert "time_embedding" in {block.block for block in blocks}
    assert list_content(bundle) == before


def test_equal_samples_pass():
    images = torch.zeros(2, 1, 4, 4)
    assert check_samples(images, images, 40.0) == float("inf")


def test_fp8_needs_ada(bundle):
    pytest.importorskip("tensorrt_rtx_bindings")
    quantize(bundle, precision="fp8", **FEW)
    with pytest.raises(ZeusError, match="sm_86 for an fp8 graph"):
        plan_engine(Bundle.open(bundle), "tensorrt-rtx", gpu="sm_86", precision="fp8")
    assert plan_engine(Bundle.open(bundle), "tensorrt-rtx", gpu="sm_89", precision="fp8").precision == "fp8"
