"""Engines built for real by TensorRT-RTX, which needs no GPU for it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from checkout import edit_json
from onnx import TensorProto, helper

import zeus_trt
from zeus_trt.errors import ZeusError
from zeus_trt.export import build, tensorrt
from zeus_trt.export.build import build_engine, find_reasons, plan_engine
from zeus_trt.export.profile import SizeRange
from zeus_trt.export.tensorrt import TensorRTOptions
from zeus_trt.files import digest_file
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.engine_folder import digest_model, find_engine, list_engines
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.engine_record import EngineSpec, Target
from zeus_trt.runtime.engines.tensorrt import TensorRTEngine
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

RTX = "tensorrt-rtx"

try:
    import_tensorrt(RTX)
    import polygraphy  # noqa: F401
except (ZeusError, ImportError) as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def bundle(digits_bundle, tmp_path):
    """A copy of the digits UNet's bundle, in a folder with an awkward name."""
    return shutil.copytree(digits_bundle("unet-flow"), tmp_path / 'it\'s a "bundle"')


@pytest.fixture(scope="module")
def built(digits_bundle, tmp_path_factory):
    """A bundle with one engine, for sm_89; tests leave it as it is."""
    folder = shutil.copytree(digits_bundle("unet-flow"), tmp_path_factory.mktemp("built") / "bundle")
    build_engine(folder, RTX, gpu="sm_89")
    return Bundle.open(folder)


@pytest.fixture
def children(monkeypatch):
    """The child processes that builds start."""
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(tensorrt.subprocess, "Popen", Popen)
    return started


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def reseal(bundle, name):
    """Puts a changed file's digest into the manifest, as another export would."""
    file, manifest = bundle / name, bundle / "manifest.json"
    files = json.loads(manifest.read_text())["files"]
    edit_json(manifest, files={**files, name: {"size": file.stat().st_size, "sha256": digest_file(file)}})


def plan(folder):
    """What the default build of a bundle would be."""
    return plan_engine(Bundle.open(folder), RTX, gpu="sm_89")


@pytest.mark.parametrize("gpu", ["sm_89", "sm_120"])
def test_builds_with_a_dynamic_profile(bundle, gpu):
    before, steps = list_files(bundle), []
    ranges = {"batch": SizeRange(1, 2, 4)}
    record = build_engine(bundle, RTX, gpu=gpu, ranges=ranges, on_progress=lambda *step: steps.append(step))
    folder = bundle / "engines" / record.key
    assert sorted(set(list_files(bundle)) - set(before)) == [
        "engines",
        f"engines/{record.key}",
        f"engines/{record.key}/denoiser.engine",
        f"engines/{record.key}/engine.json",
    ]
    assert record.spec.profile["sample"] == ShapeRange((1, 1, 32, 32), (4, 1, 32, 32), (8, 1, 32, 32))
    assert record.spec.target.sms == (gpu,)
    assert record.spec.precision == "fp32"
    assert record.size == (folder / "denoiser.engine").stat().st_size > 1_000_000
    assert record.build_seconds > 0
    assert steps[0] == ("Reading the graph", 0.0)
    assert all(0 <= done <= 1 for _, done in steps)
    spec = record.spec
    digests = digest_model(Bundle.open(bundle).manifest, RTX)
    asked = EngineSpec(RTX, spec.backend_version, spec.precision, {}, Target((gpu,)), *digests)
    assert find_engine(bundle, asked).record == record
    with pytest.raises(ZeusError, match=f"built for {gpu}, this GPU is sm_75"):
        find_engine(bundle, replace(asked, target=Target(("sm_75",))))


def test_reused_when_nothing_changed(built, children):
    said = []
    record = build_engine(built, RTX, gpu="SM89", say=said.append)
    assert children == []
    assert said == [f"reuses {RTX}: {built.path / 'engines' / record.key}"]


def test_moved_bundles_keep_their_engine(built, tmp_path, children):
    moved = shutil.copytree(built.path, tmp_path / "moved")
    build_engine(moved, RTX, gpu="sm_89")
    assert children == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "sm_120"}, "built for sm_89, asked for sm_120"),
        ({"gpu": ("8.9", "sm_120")}, "built for sm_89, asked for sm_89, sm_120"),
        ({"ranges": {"batch": SizeRange(1, 1, 2)}}, "built for timestep 1..8 (best at 2), asked for 1..4 (best at 2)"),
        ({"guidance": False}, "built for timestep 1..8 (best at 2), asked for 1..4 (best at 1)"),
        ({"options": TensorRTOptions(tf32=True)}, "built with tf32 False, asked for True"),
        ({"options": TensorRTOptions(optimization_level=5)}, "built with optimization_level None, asked for 5"),
        ({"options": TensorRTOptions(weight_streaming=True)}, "built with weight_streaming False, asked for True"),
    ],
)
def test_says_what_changed(built, change, reason):
    reasons = find_reasons(built, plan_engine(built, RTX, **{"gpu": "sm_89", **change}))
    assert reason in reasons
    assert len(reasons) == (3 if "timestep" in reason else 1)


def test_another_version_of_either_library(built, monkeypatch):
    monkeypatch.setattr(build, "__version__", "9.9")
    assert find_reasons(built, plan(built.path)) == (f"built by zeus-trt {zeus_trt.__version__}, this one is 9.9",)
    monkeypatch.undo()
    monkeypatch.setattr(import_tensorrt(RTX), "__version__", "9.9.9")
    (reason,) = find_reasons(built, plan(built.path))
    assert reason.endswith("of its library, this one is 9.9.9")


def test_rebuilt_from_other_weights_and_another_graph(built, tmp_path):
    folder = shutil.copytree(built.path, tmp_path / "bundle")
    weights = np.fromfile(folder / "graphs/fp32/denoiser.onnx.data", dtype=np.uint8)
    weights[:4] = np.frombuffer(np.float32(0.5).tobytes(), dtype=np.uint8)
    weights.tofile(folder / "graphs/fp32/denoiser.onnx.data")
    reseal(folder, "graphs/fp32/denoiser.onnx.data")
    said = []
    first = build_engine(folder, RTX, gpu="sm_89", say=said.append)
    assert "built from other weights than the bundle" in said[-1]
    graph = onnx.load(folder / "graphs/fp32/denoiser.onnx", load_external_data=False)
    graph.doc_string = "another"
    (folder / "graphs/fp32/denoiser.onnx").write_bytes(graph.SerializeToString())
    reseal(folder, "graphs/fp32/denoiser.onnx")
    assert "built from another graph than the bundle" in find_reasons(Bundle.open(folder), plan(folder))[0]
    assert first.key != plan(folder).key


def test_a_damaged_engine_is_built_again(built, tmp_path):
    folder = shutil.copytree(built.path, tmp_path / "bundle")
    (engine,) = folder.glob("engines/*/denoiser.engine")
    engine.write_bytes(b"half")
    said = []
    record = build_engine(folder, RTX, gpu="sm_89", say=said.append)
    assert said == [f"builds {RTX}: its file denoiser.engine was changed since it was built"]
    assert engine.stat().st_size == record.size
    assert len(list(folder.glob("engines/*"))) == 1


@pytest.mark.parametrize(("kind", "precision"), [("FLOAT16", "fp16"), ("BFLOAT16", "bf16")])
@pytest.mark.parametrize("gpu", ["sm_89", "sm_120"])
def test_half_precision_graphs(built, tmp_path, kind, precision, gpu):
    dtype = getattr(TensorProto, kind)
    value, shape = helper.make_tensor_value_info, ["batch", 8, 16, 16]
    weights = helper.make_tensor("w", dtype, [8, 8, 3, 3], np.linspace(-1, 1, 576))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["sample", "w"], ["model_output"], pads=[1, 1, 1, 1])],
        "half",
        [value("sample", dtype, shape)],
        [value("model_output", dtype, shape)],
        [weights],
    )
    file = tmp_path / "half.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), file)
    profile = {"sample": ShapeRange((1, 8, 16, 16), (2, 8, 16, 16), (4, 8, 16, 16))}
    spec = replace(plan(built.path), profile=profile, precision=precision, target=Target((gpu,)))
    tensorrt.build_tensorrt(file, spec, tmp_path / "half.engine")
    assert (tmp_path / "half.engine").stat().st_size > 1000
    assert list_files(tmp_path) == ["half.engine", "half.onnx"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_the_real_library_refuses_to_load_without_cuda(built, monkeypatch):
    (file,) = list_engines(built.path)
    with pytest.raises(ZeusError, match="got no CUDA device"):
        TensorRTEngine(file, built.manifest)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with pytest.raises(ZeusError, match=r"could not be loaded \(.*Cuda Runtime"):
        TensorRTEngine(file, built.manifest, device="cpu")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_builder_that_dies_is_an_error(bundle, children, name):
    before = list_files(bundle)
    with pytest.raises(ZeusError, match=f"got a builder that died of {name}"):
        build_engine(bundle, RTX, gpu="sm_89", on_progress=lambda *_: os.kill(children[0].pid, getattr(signal, name)))
    assert list_files(bundle) == before


def test_cancelling_ends_the_child_and_leaves_nothing(bundle, children):
    before = list_files(bundle)

    def cancel(step, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(bundle, RTX, gpu="sm_89", on_progress=cancel)
    assert children[0].returncode == -signal.SIGKILL
    assert list_files(bundle) == before


def test_the_child_ends_with_its_parent(bundle, children):
    def cancel(step, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(bundle, RTX, gpu="sm_89", on_progress=cancel)
    orphan = subprocess.run(children[0].args, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert orphan.returncode == 1
    assert b"error" not in orphan.stdout  # it did not come as far as to miss its folder


def test_a_graph_that_the_parser_refuses(bundle):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Frobnicate", ["sample"], ["model_output"], name="odd")],
        "odd",
        [value("sample", TensorProto.FLOAT, ["batch", 1, 32, 32])],
        [value("model_output", TensorProto.FLOAT, ["batch", 1, 32, 32])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), bundle / "graphs/fp32/denoiser.onnx"
    )
    reseal(bundle, "graphs/fp32/denoiser.onnx")
    before = list_files(bundle)
    with pytest.raises(ZeusError, match=r"Frobnicate.*Plugin not found") as caught:
        build_engine(bundle, RTX, gpu="sm_89")
    assert "\n" not in str(caught.value)
    assert list_files(bundle) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "openvino"}, "backend: got openvino; expected one of tensorrt, tensorrt-rtx, aot-inductor"),
        ({"gpu": "sm_90"}, "gpu: got sm_90; expected one of sm_"),
        ({"gpu": "H100"}, "gpu: got 'H100'; expected a compute capability such as sm_89"),
        ({"precision": "fp16"}, "precision: got fp16 for a bundle with graphs in fp32; expected one of these"),
        ({"options": TensorRTOptions(version_compatible=True)}, "version_compatible: got it for tensorrt-rtx"),
        ({"options": TensorRTOptions(hardware_compatible=True)}, "hardware_compatible: got it for tensorrt-rtx"),
        ({"options": TensorRTOptions(optimization_level=6)}, "optimization_level: got 6; expected 0..5"),
        ({"ranges": {"height": SizeRange(1, 1, 1)}}, "ranges: got height; expected batch"),
    ],
)
def test_what_cannot_be_built_is_refused_before_a_child_starts(built, children, change, message):
    with pytest.raises(ZeusError, match=message.replace("(", r"\(")):
        build_engine(built, **{"backend": RTX, "gpu": "sm_89", **change})
    assert children == []


def test_without_a_gpu_a_target_must_be_named(built, monkeypatch):
    monkeypatch.setattr(build, "find_gpu", lambda: None)
    with pytest.raises(ZeusError, match=r"gpu: got none on a machine with no GPU.*--gpu sm_89"):
        build_engine(built, RTX)
