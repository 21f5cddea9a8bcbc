"""`zeus-trt package`: a folder that a C++ engineer can follow alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkout import MODELS, edit_json
from click.testing import CliRunner
from cpp_driver import find_compiler
from engine_samples import SPEC, write_engine
from small_bundle import STEPS, write_bundle
from tiny_subjects import write_calibrated

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export.deployment import write_deployment
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.engine_folder import digest_model
from zeus_trt.runtime.bundle.engine_trust import trust_engines
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.zeus_graph import Plan, SamplingProgram

README = "README.md"


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "bundle", fp16=0.2)


@pytest.fixture
def quantized(tmp_path):
    return write_bundle(tmp_path / "quantized", int8=0.2)


def list_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def check_sums(folder):
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False
    )
    listed = [line.split(maxsplit=1)[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert sorted(listed) == [name for name in list_files(folder) if name != "SHA256SUMS"]
    return done.returncode == 0


def test_a_graph_is_packaged_with_programs_headers_and_checksums(bundle, tmp_path):
    (tmp_path / "plan.json").write_text('{"format": 1, "steps": "FFXRF"}')
    output = tmp_path / "deploy"
    asked = ["package", str(bundle), "-o", str(output), "--backend", "onnxruntime", "--json"]
    asked += ["--steps", str(STEPS), "--ratios", "0,2", "--plans", str(tmp_path / "plan.json")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout.splitlines()[-1])["programs"]
    assert [one["file"] for one in made] == [f"programs/{name}.json" for name in ("5-r0", "5-r2", "plan")]
    assert [SamplingProgram.load(output / one["file"]).plan for one in made] == [one["steps"] for one in made]
    assert (made[-1]["steps"], made[-1]["nfe"]) == ("FFXRF", 3)
    files = list_files(output)
    assert {"graphs/fp32/denoiser.onnx", "graphs/fp32/denoiser.onnx.data", "cpp/zeus_trt/zeus_trt.hpp"} <= set(files)
    assert not {"sample.cpp", "engine/engine.json"} & set(files)
    assert (output / "manifest.json").read_bytes() == (bundle / "manifest.json").read_bytes()
    assert check_sums(output)
    text = (output / README).read_text()
    assert "| `programs/plan.json` | 5 | plan.json | 3 | 1.67 |" in text
    assert "| `sample` | float32 | batch, 1, 4, 4 |" in text
    (output / "manifest.json").write_text("{}")
    assert not check_sums(output)


def test_another_precision_is_packaged(bundle, tmp_path):
    write_deployment(bundle, tmp_path / "deploy", "onnxruntime", steps=(STEPS,), ratios=(0,), precision="fp16")
    assert (tmp_path / "deploy" / "graphs" / "fp16" / "denoiser.onnx").exists()
    assert not (tmp_path / "deploy" / "graphs" / "fp32").exists()
    assert "`graphs/fp16/denoiser.onnx`" in (tmp_path / "deploy" / README).read_text()


def make_spec(bundle, backend="aot-inductor", precision=Precision.FP32, **changes):
    graph, weights = digest_model(Bundle.open(bundle).manifest, backend, precision)
    own = {"backend": backend, "precision": precision, "graph_sha256": graph, "weights_sha256": weights}
    return replace(SPEC, **{**own, **changes})


def write_mixed(folder):
    (folder / "mixed.json").write_text('{"format": 1, "steps": "FQXRF"}')
    return {"plans": [folder / "mixed.json"]}


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt-rtx"])
def test_a_plan_with_q_brings_both_engines(quantized, tmp_path, backend):
    for precision in Precision.FP32, Precision.INT8:
        write_engine(quantized, make_spec(quantized, backend, precision), precision.encode())
    output = tmp_path / "deploy"
    made = write_deployment(quantized, output, backend, steps=(STEPS,), ratios=(0,), **write_mixed(tmp_path))
    assert [program.steps for program in made] == ["FFFFF", "FQXRF"]
    text = (output / README).read_text()
    assert "zeus_trt::EnginePair both(engine, quantized)" in text
    assert check_sums(output)
    places = ("engine", "quantized") if backend == "tensorrt-rtx" else ("graphs/fp32", "graphs/int8")
    assert all(f"| `{place}/denoiser." in text for place in places)
    names = [[path.name for path in sorted((output / place).iterdir())] for place in places]
    assert names[0] == names[1]
    assert len(names[0]) == 2
    if backend == "tensorrt-rtx":
        assert [(output / place / "denoiser.engine").read_bytes() for place in places] == [b"fp32", b"int8"]
    write_deployment(quantized, output, backend, steps=(STEPS,), ratios=(0,), overwrite=True)
    assert not (output / places[1]).exists()  # no program calls it


@pytest.mark.parametrize(
    ("fixture", "backend", "words"),
    [
        ("bundle", "onnxruntime", "no quantized graph; expected one in int8 or fp8. Add it: zeus-trt quantize"),
        ("quantized", "tensorrt-rtx", "expected one of tensorrt-rtx in int8"),
        ("quantized", "tensorrt-rtx", "--backend tensorrt-rtx --precision int8`"),
        ("quantized", "aot-inductor", "got int8 for aot-inductor"),
    ],
)
def test_a_plan_with_q_needs_both_engines(request, tmp_path, fixture, backend, words):
    source = request.getfixturevalue(fixture)
    write_engine(source, make_spec(source, backend))
    assert words in refuse(source, tmp_path / "deploy", backend, **write_mixed(tmp_path))


def refuse(bundle, output, backend="onnxruntime", **options) -> str:
    with pytest.raises(ZeusError) as error:
        write_deployment(bundle, output, backend, **{"steps": (STEPS,), "ratios": (2,), **options})
    assert not output.exists()
    return str(error.value)


def test_what_cannot_be_packaged_is_refused_and_leaves_nothing(bundle, tmp_path):
    output = tmp_path / "deploy"
    assert "got magic; expected one of onnxruntime, tensorrt" in refuse(bundle, output, "magic")
    assert "got none in" in refuse(bundle, output, "aot-inductor")
    assert "--backend aot-inductor --model MODEL" in refuse(bundle, output, "aot-inductor")
    assert "expected one of these" in refuse(bundle, output, precision="int8")
    (tmp_path / "5-r2.json").write_text('{"format": 1, "steps": "FFXRF"}')
    assert "two programs of the name 5-r2" in refuse(bundle, output, plans=[tmp_path / "5-r2.json"])
    write_calibrated(tmp_path / "plan.json")
    assert "model weights" in refuse(bundle, output, plans=[tmp_path / "plan.json"])
    edit_json(bundle / "manifest.json", unsteppable="it is odd")
    assert "since it is odd" in refuse(bundle, output)
    (bundle / "graphs" / "fp32" / "denoiser.onnx").write_bytes(b"")
    assert "other content" in refuse(bundle, output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "give --backend"),
        ("--triton --backend onnxruntime", "--triton and --backend exclude each other"),
        ("--triton --ratios 2", "--triton and --ratios exclude each other"),
        ("--backend onnxruntime --max-rows 4", "--max-rows needs --triton"),
    ],
)
def test_options_of_the_other_form_are_refused(tmp_path, words, said):
    done = CliRunner().invoke(main, ["package", "nowhere", "-o", str(tmp_path / "deploy"), *words.split()])
    assert done.exit_code == 2
    assert said in done.output


def test_an_engine_of_another_machine_needs_trust(bundle, tmp_path):
    write_engine(bundle, make_spec(bundle), b"machine code", signed=False)
    output = tmp_path / "deploy"
    assert "not built on this machine" in refuse(bundle, output, "aot-inductor")
    with trust_engines():
        write_deployment(bundle, output, "aot-inductor", steps=(STEPS,), ratios=(2,))
    assert [path.read_bytes() for path in (output / "engine").iterdir() if path.suffix != ".json"] == [b"machine code"]
    assert {"CMakeLists.txt", "sample.cpp", "server.cpp"} <= set(list_files(output))
    assert check_sums(output)


def test_an_engine_of_another_model_is_refused(bundle, tmp_path):
    write_engine(bundle, make_spec(bundle, graph_sha256="1" * 64))
    write_engine(bundle, make_spec(bundle, precision=Precision.FP16))
    write_engine(bundle, make_spec(bundle, backend="tensorrt"))
    said = refuse(bundle, tmp_path / "deploy", "aot-inductor")
    assert "built from another graph" in said
    assert "built in fp16, asked for fp32" in said
    assert "built by tensorrt" not in said


@pytest.fixture(scope="module")
def deployed(digits_bundle, tmp_path_factory):
    """The digits model with an AOTInductor package, its deployment, and its programs built as the README says."""
    find_compiler("g++")
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    folder = tmp_path_factory.mktemp("deployed")
    bundle, output = shutil.copytree(digits_bundle("unet-flow"), folder / "bundle"), folder / "deploy"
    for command in (
        ["build", bundle, "--backend", "aot-inductor", "--model", MODELS / "digits-unet-flow", "--range", "batch=1-4"],
        ["package", bundle, "-o", output, "--backend", "aot-inductor", "--steps", "20"],
    ):
        done = CliRunner().invoke(main, [str(word) for word in command])
        assert done.exit_code == 0, done.output
    blocks = re.findall(r"```bash\n(.*?)```", (output / README).read_text(), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks:
        done = subprocess.run(
            ["bash", "-e", "-c", block], cwd=output, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return bundle, output


def measure(found, expected) -> float:
    expected = expected.numpy()
    return float(np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max())


@pytest.mark.slow
def test_its_readme_samples_what_python_samples(deployed):
    bundle, output = deployed
    session = Session(bundle, backend="aot-inductor")
    labels = {"class_labels": torch.tensor([0, 1])}
    made = session.generate(labels, mode="program", num_steps=20, ratio=4, guidance_scale=2.0, seed=0).latents
    assert measure(np.fromfile(output / "sample.pgm.f32", np.float32), made) < 1e-6
    head, pixels = (output / "sample.pgm").read_bytes().split(b"\n255\n", 1)
    assert head == b"P5\n64 32"
    expected = made.mul(127.5).add(127.5).round().clamp(0, 255).squeeze(1)
    assert np.array_equal(np.frombuffer(pixels, np.uint8).reshape(32, 64), torch.cat([*expected], 1).numpy())


@pytest.mark.slow
def test_its_server_serves_requests_of_two_plans_in_one_call(deployed):
    bundle, output = deployed
    found = np.fromfile(output / "latents.f32", np.float32).reshape(2, -1)
    session = Session(bundle, backend="aot-inductor")
    for k, ratio in enumerate((0, 4)):
        settings = {"num_steps": 20, "ratio": ratio, "guidance_scale": 1.0, "seed": k}
        made = session.generate({"class_labels": torch.tensor([k])}, mode="program", **settings).latents
        assert measure(found[k], made) < 1e-5  # a batch of two rounds otherwise than two of one


@pytest.mark.slow
def test_its_programs_refuse_in_one_sentence(deployed):
    bundle, output = deployed

    def run(*words) -> str:
        done = subprocess.run(words, cwd=output, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr.strip()

    program = "programs/20-r4.json"
    said = run("./build/sample", ".", program, "0,1,2,3,4,5,6,7,8", "1", "0", "x.pgm")
    assert "class_labels" in said or "sample: got the shape 9x1x32x32; expected 1..8x1x32x32" in said
    assert "manifest: got nowhere/manifest.json" in run("./build/sample", "nowhere", program, "0", "1", "0", "x.pgm")
    mixed, _ = Session(bundle).solver.choose("program", Plan("FFXQ"), 4)
    mixed.save(output / "mixed.json")
    for words in (("sample", ".", "mixed.json", "0", "1", "0", "x.pgm"), ("server", ".", "x.f32", "mixed.json")):
        assert "plan: got Q for an engine in fp32" in run(f"./build/{words[0]}", *words[1:])
    (output / "engine" / "denoiser.pt2").write_bytes(b"other")
    said = run("./build/sample", ".", program, "0", "1", "0", "x.pgm")
    assert said.startswith("Error: engine: got ./engine/denoiser.pt2 with other content (5 bytes); expected")
