"""`zeus-trt import` of a compiled engine, and the commands that take its bundle, or refuse it."""

import json

import pytest
import torch
from click.testing import CliRunner
from foreign_packages import compile_foreign

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Session
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving_model import ServedModel

NAMES = ("--latents", "x", "--timestep", "noise_level", "--parameterization", "edm")
LABELS = ("--input", "label=[3,7]")
COMMON = ("--steps", 12)


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def bundle(cached_bundle, tmp_path_factory):
    package, folder = compile_foreign(cached_bundle, "bare"), tmp_path_factory.mktemp("import") / "bundle"
    refused = call("import", package, "-o", folder, *NAMES)
    assert refused.exit_code == 1
    assert "model: got bare.pt2, a compiled engine: that runs code of whoever wrote it" in refused.stderr
    done = call("import", package, "-o", folder, *NAMES, "--steps", 12, "--trust-engines")
    assert done.exit_code == 0, done.output
    assert "ImportedEngine, batch may vary, relative error to bare.pt2 at most" in done.stdout
    return folder


@pytest.mark.extra
def test_one_command_line_compares_ratios_and_solvers(bundle):
    done = call(
        "compare", bundle, *LABELS, "--ratios", "0,2,3", "--solvers", "default,dpmpp-2m", "--num-images", 2,
        "--rounds", 1, *COMMON, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["solver"], row["backend"]) for row in rows] == [
        (solver, "aot-inductor") for solver in ("default", "dpmpp-2m") for _ in range(3)
    ]
    assert [row["nfe"] for row in rows][:3] == [12, 8, 7]


@pytest.mark.extra
def test_it_runs_and_is_inspected(bundle, tmp_path):
    done = call("run", bundle, *LABELS, "--ratio", 2, *COMMON, "--num-images", 2, "--json", "-o", tmp_path / "a.png")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nfe"] <= 8
    done = call("inspect", bundle)
    assert "fp32 to bare.pt2" in done.stdout
    assert "aot-inductor fp32 for cpu-" in done.stdout
    assert "runs here" in done.stdout


@pytest.mark.extra
def test_calibration_finds_a_plan_that_runs_and_a_gate_measures_it(bundle, tmp_path):
    counts, plan = ("--num-trajectories", 2, "--num-validation", 1, "--num-held-out", 1), tmp_path / "plan.json"
    done = call("calibrate", bundle, *LABELS, "--budget", 8, *counts, *COMMON, "-o", plan)
    assert done.exit_code == 0, done.output
    done = call("run", bundle, *LABELS, "--plan", plan, *COMMON, "--json", "-o", tmp_path / "a.png")
    assert json.loads(done.stdout)["nfe"] <= 8
    done = call("gate", bundle, *LABELS, "--plan", plan, "--min-psnr", 1, "--num-held-out", 1, *COMMON)
    assert done.exit_code == 0, done.output


@pytest.mark.extra
def test_a_server_makes_pictures(bundle):
    service = ServedModel(str(bundle), inputs=("label=[2,3]",)).open_service()
    try:
        request = ImageRequest(n=2, steps=12, ratio=2, seed=5)
        made = service.model.submit(request, time_limit=60).result()
        other = service.model.submit(ImageRequest(n=2, steps=12, ratio=2, seed=5, inputs={"label": 9})).result()
        assert made.report.backend == "aot-inductor"
        assert made.report.nfe == 8
        assert made.images[0].tobytes() != other.images[0].tobytes()
    finally:
        service.close()


@pytest.mark.extra
@pytest.mark.parametrize(
    "words",
    [
        ("build", "BUNDLE", "--backend", "aot-inductor"),
        ("build", "BUNDLE", "--backend", "tensorrt-rtx", "--gpu", "sm_89"),
        ("quantize", "BUNDLE", "--precision", "int8", *LABELS, *COMMON),
        ("adapter", "BUNDLE", "LORA", "-o", "ink"),
        ("package", "BUNDLE", "-o", "OUT", "--backend", "aot-inductor"),
        ("package", "BUNDLE", "-o", "OUT", "--backend", "onnxruntime"),
        ("package", "BUNDLE", "-o", "OUT", "--triton"),
        ("verify", "BUNDLE", "examples/models/digits-unet-flow"),
    ],
    ids=lambda words: "-".join(map(str, words[::3])),
)
def test_what_needs_a_graph_says_so_in_one_sentence(bundle, tmp_path, words):
    places = {"BUNDLE": bundle, "OUT": tmp_path / "out", "LORA": tmp_path / "lora.safetensors"}
    before = sorted(bundle.rglob("*"))
    done = call(*(places.get(word, word) for word in words))
    assert done.exit_code == 1, done.output
    assert "graph: got a bundle of a compiled engine alone (aot-inductor); expected one with a graph" in done.stderr
    assert "Import the graph or the program that the engine was compiled from." in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(bundle.rglob("*")) == before


@pytest.mark.extra
def test_other_backends_and_precisions_are_refused(bundle, tmp_path):
    done = call("run", bundle, *LABELS, "--backend", "onnxruntime", "-o", tmp_path / "a.png")
    assert done.exit_code == 1
    assert "--backend: got onnxruntime for a bundle without a graph, whose engine is aot-inductor" in done.stderr
    with pytest.raises(ZeusError, match="graph: got a bundle of a compiled engine alone"):
        Session(bundle, precision="fp16")
    with Session(bundle, precision="fp32") as session, pytest.raises(ZeusError, match="which has no quantized graph"):
        session.generate({"label": torch.tensor([1])}, num_steps=4, plan="FQFF")


def test_a_plan_is_refused_where_there_is_no_gpu(tmp_path):
    (tmp_path / "net.plan").write_bytes(b"ptrt")
    done = call("import", tmp_path / "net.plan", "-o", tmp_path / "b", *NAMES)
    assert "model: got net.plan, a compiled engine" in done.stderr
    done = call("import", tmp_path / "net.plan", "-o", tmp_path / "b", *NAMES, "--trust-engines")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    if not torch.cuda.is_available():
        assert "model: got net.plan, a plan of TensorRT, on a machine without a CUDA device" in done.stderr
