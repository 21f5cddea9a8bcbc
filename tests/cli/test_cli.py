"""The command line: what it prints, what it writes, and how it refuses."""

import errno
import json
import math
import shutil

import pytest
import torch
from checkout import MODELS
from click.testing import CliRunner
from diffusers import EulerAncestralDiscreteScheduler
from PIL import Image

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import Case, compare
from zeus_trt.zeus_graph import SamplingProgram


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def last_json(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bundle(digits_bundle):
    return digits_bundle("unet-flow")


def test_export_and_inspect(tiny_model, tmp_path):
    done = call("export", tiny_model, "-o", tmp_path / "bundle")
    assert done.exit_code == 0, done.output
    assert "relative error to eager" in done.stdout
    shown = call("inspect", tmp_path / "bundle")
    assert "class_labels int64 (batch)" in shown.stdout
    assert last_json(call("inspect", tmp_path / "bundle", "--json"))["labels"] == {"count": 3, "null": 3}


def test_run_writes_a_picture_and_counts_calls(bundle, tmp_path):
    picture = tmp_path / "out.png"
    options = ("--steps", 10, "--ratio", 3, "--label", 7, "--num-images", 2, "--seed", 1)
    report = last_json(call("run", bundle, *options, "-o", picture, "--json"))
    assert Image.open(picture).size == (140, 72)
    assert (report["plan"], report["nfe"], report["backend"]) == ("FFFXRXFXRF", 5, "onnxruntime")
    assert report["engine_seconds"] <= report["total_seconds"]


def test_run_takes_a_plan_and_a_predictor(bundle, tmp_path):
    options = ("--steps", 6, "--plan", "FFXRFF", "--predictor", "reuse", "--num-images", 1)
    report = last_json(call("run", bundle, *options, "-o", tmp_path / "out.png", "--json"))
    assert (report["plan"], report["predictor"], report["nfe"]) == ("FFXRFF", "reuse", 4)


def test_compare(bundle, tmp_path):
    options = ("--steps", 8, "--ratios", "0,3", "--num-images", 2, "--rounds", 1)
    done = call("compare", bundle, *options, "-o", tmp_path / "report", "--json")
    data = last_json(done)
    assert [row["nfe"] for row in data["rows"]] == [8, 5]
    assert "PSNR" in done.stderr
    assert (tmp_path / "report" / "grid.png").is_file()


def test_plan():
    done = call("plan", "--steps", 50, "--ratio", 3)
    assert done.stdout.splitlines() == [
        "FFFFFFFFFFFXRXFXRXFXRXFXRXFXRXFXRXFXRXFXRXFXRFFFFF",
        "full steps     0-10, 14, 18, 22, 26, 30, 34, 38, 42, 45-49",
        "NFE            24 of 50",
        "speed-up bound 2.08x",
    ]
    assert last_json(call("plan", "--nfe", 18, "--json"))["nfe"] == 18
    assert last_json(call("plan", "--window", "flow", "--json"))["nfe"] == 20
    few = ("--steps", 25, "--preset", "medium", "--window", "first:11,from:45")
    assert last_json(call("plan", *few, "--json"))["full_steps"] == [*range(11), 13, 16, 19, 22, 24]
    assert last_json(call("plan", "--plan", "ffxf", "--json"))["steps"] == "FFXF"


def test_plan_on_a_solver(tmp_path):
    scheduler = MODELS / "digits-unet-v" / "scheduler"
    options = ("plan", "--steps", 20, "--ratio", 3, "--scheduler", scheduler)
    shown = call(*options, "--show-program", "-o", tmp_path / "plan.png")
    assert shown.exit_code == 0, shown.output
    assert "10 full steps, 3 latents" in shown.stdout
    assert len([line for line in shown.stdout.splitlines() if line.startswith("step ")]) == 10
    assert Image.open(tmp_path / "plan.png").width > 800
    program = last_json(call(*options, "--show-program", "--json"))["program"]
    assert SamplingProgram.from_json(program).plan == "FFFFFXRXFXRXFXRXFXFF"
    assert "program" not in last_json(call(*options, "--json"))


def test_plan_is_drawn_without_a_solver(tmp_path):
    assert call("plan", "-o", tmp_path / "plan.png").exit_code == 0
    assert Image.open(tmp_path / "plan.png").width > 800


def test_doctor_says_what_runs_here():
    done = call("doctor", "--json")
    backends = {backend["name"]: backend for backend in last_json(done)["backends"]}
    assert backends["onnxruntime"]["runs"]
    assert backends["onnxruntime"]["builds"]
    assert not backends["tensorrt"]["runs"] or torch.cuda.is_available()
    assert "zeus-trt[tensorrt]" in done.stderr


def damaged(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "damaged")
    data = copy / "graphs/fp32/denoiser.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    return copy


def without_data(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "without")
    (copy / "graphs/fp32/denoiser.onnx.data").unlink()
    return copy


def scheduler_of(content):
    def write(bundle, tmp_path):
        (tmp_path / "scheduler.json").write_bytes(content)
        return tmp_path / "scheduler.json"

    return write


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "OTHER", "-o", "OUT"), "expected a folder written by `zeus-trt export`"),
        (("run", damaged, "-o", "OUT"), "other content"),
        (("inspect", without_data), "without graphs/fp32/denoiser.onnx.data"),
        (("run", "BUNDLE", "--steps", 10, "--plan", "FFXF", "-o", "OUT"), "got 4 steps; expected 10"),
        (("run", "BUNDLE", "--plan", "XFFF", "-o", "OUT"), "got X as the first step"),
        (("run", "BUNDLE", "--plan", "FFFR", "-o", "OUT"), "got R as the last step"),
        (("run", "BUNDLE", "--ratio", -1, "-o", "OUT"), "ratio: got -1"),
        (("run", "BUNDLE", "--label", 11, "-o", "OUT"), "label: got 11; expected 0..9"),
        (("run", "BUNDLE", "--label", -1, "-o", "OUT"), "label: got -1; expected 0..9"),
        (("run", "BUNDLE", "--predictor", "magic", "-o", "OUT"), "expected one of zeus"),
        (("run", "BUNDLE", "-o", "file/out.png"), "cannot be written"),
        (("run", "BUNDLE", "-o", "OUT.xyz"), "expected a picture's name"),
        (("run", "BUNDLE", "--label", "0,1,2", "--num-images", 2, "-o", "OUT"), "--num-images: got 2 for 3"),
        (("run", "BUNDLE", "--plan", "", "-o", "OUT"), "plan: got no steps"),
        (("compare", "BUNDLE", "--ratios", "0,-2"), "ratio: got -2"),
        (("compare", "BUNDLE", "-o", "file/folder"), "cannot be made"),
        (("export", "OTHER", "-o", "OUT"), "or a folder with unet or transformer"),
        (("export", "MODEL", "-o", "file/bundle"), "cannot be written"),
        (("export", "MODEL", "-o", "bundle", "--tolerance", 0), "relative error"),
        (("plan", "--steps", 50, "--ratio", -1), "ratio: got -1"),
        (("plan", "--plan", "FFX"), "got X as the last step"),
        (("plan", "--scheduler", "OTHER"), "expected a scheduler_config.json"),
        (("plan", "--plan", ""), "plan: got no steps"),
        (("plan", "--plan", "none.json"), "got none.json, which cannot be read (No such file"),
        (("plan", "--scheduler", "ANCESTRAL"), "stochastic"),
        (("plan", "--scheduler", scheduler_of(b"[1]")), "Expected object, got array"),
        (("plan", "--scheduler", scheduler_of(b"\xff")), "got text that is no UTF-8"),
        (("plan", "--scheduler", scheduler_of(b'{"_class_name": 5}')), "it has no _class_name"),
        (
            ("plan", "--scheduler", scheduler_of(b'{"_class_name": "DDIMScheduler", "beta_schedule": "steep"}')),
            "steep is not implemented",
        ),
        (("plan", "--predictor", "magic", "--scheduler", "LINEAR"), "expected one of zeus"),
        (("plan", "-o", "plan.xyz"), "expected a picture's name"),
        (("plan", "-o", "plan.psd"), "expected a picture's name"),
        (("demo", "-o", "file/demo"), "cannot be written"),
    ],
    ids=lambda value: (
        " ".join(getattr(word, "__name__", str(word)) for word in value) if isinstance(value, tuple) else ""
    ),
)
def test_bad_input_is_one_sentence_and_leaves_nothing(bundle, tiny_model, tmp_path, monkeypatch, words, reason):
    names = {"BUNDLE": bundle, "OTHER": tmp_path / "other", "OUT": "out.png", "MODEL": tiny_model}
    names["LINEAR"], names["ANCESTRAL"] = tiny_model / "scheduler", tmp_path / "ancestral"
    EulerAncestralDiscreteScheduler().save_pretrained(names["ANCESTRAL"])
    words = [word(bundle, tmp_path) if callable(word) else names.get(word, word) for word in words]
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").touch()
    monkeypatch.chdir(work)
    done = call(*words)
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    error = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(error) == 1
    assert reason in error[0]
    assert done.stderr.endswith(error[0] + "\n")
    assert [path.name for path in work.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("compare", "b", "--ratios", "a,b"), "'a,b' is not a list of whole numbers"),
        (("compare", "b", "--steps", "9,0"), "0 is less than 1"),
        (("compare", "b", "--backends", ""), "'' is not a list of names"),
        (("compare", "b", "--solvers", ","), "',' is not a list of names"),
        (("run", "b"), "Missing option '-o'"),
        (("run", "b", "-o", "o", "--steps", 0), "0 is not in the range x>=1"),
        (("run", "b", "-o", "o", "--frames", 0), "0 is not in the range x>=1"),
        (("run", "b", "-o", "o", "--size", "-8x8"), "'-8x8' has a side below 1"),
        (("run", "b", "-o", "o", "--size", "8x0"), "'8x0' has a side below 1"),
        (("run", "b", "-o", "o", "--guidance-scale", "nan"), "nan is not a finite number"),
        (("run", "b", "-o", "o", "--strength", 1.5), "1.5 is not in 0..1"),
        (("export", "m", "-o", "o", "--size", "0x0"), "'0x0' has a side below 1"),
        (("export", "m", "-o", "o", "--steps", -5), "-5 is less than 1"),
        (("export", "m", "-o", "o", "--tolerance", "nan"), "nan is not a finite number"),
        (("export", "m", "-o", "o", "--range", "foo=1-4"), "need --backend"),
        (("export", "m", "-o", "o", "--batch", 3), "need --backend"),
        (("export", "m", "-o", "o", "--gpu", "sm_89", "--backend", "onnxruntime"), "need --backend"),
        (("verify", "b", "m", "--tolerance", -1), "-1 is not in 0..inf"),
        (("plan", "--show-program"), "--show-program needs --scheduler"),
        (("plan", "--predictor", "magic"), "--predictor needs --scheduler"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_usage_errors_exit_with_2(words, reason):
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert reason in done.stderr


def test_no_error_is_within_a_tolerance_that_is_no_number():
    inputs = {"sample": torch.ones(1, 4)}
    with pytest.raises(ZeusError, match="verification: got a relative error"):
        compare(lambda sample: (sample,), lambda sample: sample, [Case(inputs, inputs)], "toy", math.nan)


def test_an_output_that_nobody_reads_is_no_error(monkeypatch):
    def close(**options):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("zeus_trt.planning.make_plan", close)
    assert (call("plan").exit_code, call("plan").stderr) == (1, "")
