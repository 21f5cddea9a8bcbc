"""`zeus-trt build`, and running what it built."""

import importlib.util
import io
import json
import shutil
import sys
import time

import pytest
import torch
from checkout import MODELS
from click.testing import CliRunner

from zeus_trt.cli import main
from zeus_trt.cli.build import show_progress
from zeus_trt.runtime import Session

NEEDS_RTX = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="needs tensorrt-rtx-cu13-bindings"
)


@pytest.fixture
def bundle(digits_bundle, tmp_path):
    return shutil.copytree(digits_bundle("unet-flow"), tmp_path / "bundle")


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@NEEDS_RTX
def test_builds_once_and_says_why(bundle):
    words = ("build", bundle, "--backend", "tensorrt-rtx", "--gpu", "sm_89", "--range", "batch=1-8")
    first = call(*words, "--json")
    assert first.exit_code == 0, first.output
    record = json.loads(first.stdout.splitlines()[-1])
    assert record["spec"]["profile"]["sample"]["max"] == [16, 1, 32, 32]
    assert "the bundle has none" in first.stderr
    assert "reuses tensorrt-rtx" in call(*words).stderr
    shown = call("inspect", bundle)
    assert "tensorrt-rtx fp32 for sm_89, refused: " in shown.stdout
    run = call("run", bundle, "--backend", "tensorrt-rtx", "-o", bundle.parent / "out.png")
    assert run.exit_code == 1
    assert not (bundle.parent / "out.png").exists()


@NEEDS_RTX
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--gpu", "sm_90"), "got sm_90; expected one of"),
        (("--gpu", "sm_89", "--precision", "fp16"), "got fp16 for a bundle with graphs in fp32"),
        (("--gpu", "sm_89", "--range", "height=1-2"), "got height; expected batch"),
        (("--gpu", "sm_89", "--version-compatible"), "--version-compatible: got it for tensorrt-rtx"),
        (("--gpu", "sm_89", "--hardware-compatible"), "--hardware-compatible: got it for tensorrt-rtx"),
        (("--gpu", "sm_89", "--optimization-level", 6), "got 6; expected 0..5"),
    ],
)
def test_what_cannot_be_built_is_refused(bundle, words, reason):
    done = call("build", bundle, "--backend", "tensorrt-rtx", *words)
    assert done.exit_code == 1, done.output
    assert reason in done.stderr
    assert not (bundle / "engines").exists()


@NEEDS_RTX
def test_options_of_the_builder(bundle):
    words = ("--gpu", "sm_89", "--optimization-level", 1, "--tf32", "--weight-streaming", "--no-guidance")
    done = call("build", bundle, "--backend", "tensorrt-rtx", *words, "--json")
    assert done.exit_code == 0, done.output
    spec = json.loads(done.stdout.splitlines()[-1])["spec"]
    assert {name for name, value in spec["options"].items() if value is True} == {"tf32", "weight_streaming"}
    assert spec["options"]["optimization_level"] == 1
    assert spec["profile"]["sample"]["max"] == [4, 1, 32, 32]


@NEEDS_RTX
def test_export_builds_engines_too(tiny_model, tmp_path):
    words = ("--backend", "onnxruntime", "--backend", "tensorrt-rtx", "--gpu", "sm_120", "--batch", "1-3")
    done = call("export", tiny_model, "-o", tmp_path / "bundle", "--steps", 5, *words)
    assert done.exit_code == 0, done.output
    assert "tensorrt-rtx fp32 for sm_120: " in done.stdout.splitlines()[-1]
    (record,) = (tmp_path / "bundle" / "engines").glob("*/engine.json")
    assert json.loads(record.read_text())["spec"]["profile"]["timestep"] == {"min": [1], "opt": [2], "max": [6]}


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--backend", "magic"), 1), (("--backend", "tensorrt", "--gpu", "sm_00"), 1), (("--batch", "few"), 2)],
)
def test_what_cannot_be_built_is_refused_before_the_export(tiny_model, tmp_path, monkeypatch, words, code):
    monkeypatch.setattr(torch.export, "export", lambda *args, **settings: pytest.fail("it exported"))
    done = call("export", tiny_model, "-o", tmp_path / "bundle", *words)
    assert done.exit_code == code, done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [None, KeyboardInterrupt])
def test_nothing_is_left_of_the_bar(monkeypatch, fault):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())

    def run():
        with show_progress() as on_progress:
            time.sleep(0.3)
            on_progress("Reading the graph", 0.25)
            time.sleep(0.2)
            on_progress("Optimizing", 0.75)
            if fault:
                raise fault

    if fault:
        with pytest.raises(fault):
            run()
    else:
        run()
    shown = sys.stderr.getvalue()
    assert "Optimizing  75%" in shown
    assert shown.split("\r")[-1] == ""
    assert shown.split("\r")[-2].strip() == ""


def test_unknown_backends_are_refused(bundle):
    assert "expected one of" in call("build", bundle, "--backend", "magic").stderr
    assert "expected" in call("run", bundle, "--backend", "magic", "-o", bundle / "out.png").stderr


def test_an_engine_that_was_not_built_is_asked_for(bundle):
    done = call("run", bundle, "--backend", "aot-inductor", "-o", bundle / "out.png")
    assert done.exit_code == 1
    assert "zeus-trt build" in done.stderr
    done = call("build", bundle, "--backend", "aot-inductor")
    assert done.exit_code == 1
    assert "got a bundle alone" in done.stderr
    done = call("build", bundle, "--backend", "aot-inductor", "--tf32")
    assert "expected none, which are TensorRT's" in done.stderr
    done = call("build", bundle, "--backend", "aot-inductor", "--model", MODELS / "digits-unet-v")
    assert done.exit_code == 1
    assert "got weights with digest" in done.stderr


@pytest.mark.slow
def test_aot_inductor_makes_the_same_pictures(bundle):
    words = (
        "build",
        bundle,
        "--backend",
        "aot-inductor",
        "--model",
        MODELS / "digits-unet-flow",
        "--range",
        "batch=1-4",
    )
    built = call(*words)
    assert built.exit_code == 0, built.output
    assert "runs here" in call("inspect", bundle).stdout
    labels = {"class_labels": torch.tensor([1, 7])}
    sessions = [Session(bundle), Session(bundle, backend="aot-inductor")]
    for ratio in (0, 3):
        first, second = (
            session.generate(labels, plan=session.plan(20, ratio), num_steps=20, guidance_scale=2.0)
            for session in sessions
        )
        assert second.report.backend == "aot-inductor"
        torch.testing.assert_close(second.latents, first.latents, rtol=0, atol=2e-3)
