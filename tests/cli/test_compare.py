"""`zeus-trt compare`: options, files, and what they refuse."""

import json

import pytest
from click.testing import CliRunner

from zeus_trt.cli import main


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def bundle(digits_bundle):
    return digits_bundle("unet-flow")


@pytest.mark.extra
def test_compare_takes_lists_and_writes_a_report(bundle, tmp_path):
    words = ("--steps", "6,4", "--ratios", "2", "--predictors", "zeus,reuse", "--num-images", 1, "--rounds", 1)
    words = (*words, "--plans", "FFXRFF", "--solvers", "default,dpmpp-2m", "--guidance-scale", 1)
    done = call("compare", bundle, *words, "-o", tmp_path / "report", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout.splitlines()[-1])
    assert {(row["solver"], row["num_steps"]) for row in data["rows"]} == {
        (solver, steps) for solver in ("default", "dpmpp-2m") for steps in (6, 4)
    }
    assert all(row["nfe"] == row["plan"].count("F") for row in data["rows"])
    assert "no eager reference: give the model folder with --model" in done.stderr
    assert "lpips: not available" in done.stderr
    assert (tmp_path / "report" / "report.html").is_file()


def test_prompts_that_do_not_read_are_said_before_the_pipeline_is_loaded(tmp_path):
    (tmp_path / "model_index.json").touch()
    (tmp_path / "prompts.txt").write_bytes(b"\xff")
    for name in ("prompts.txt", "none.txt"):
        done = call("compare", tmp_path, "--prompts", tmp_path / name)
        assert done.exit_code == 1
        assert f"--prompts: got {tmp_path / name}, which does not read" in done.stderr
    done = call("compare", tmp_path / "mistyped", "--prompts", tmp_path / "prompts.txt")
    assert f"bundle: got {tmp_path / 'mistyped'} without a readable manifest.json" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--backends", "cuda-magic"), "expected some of eager, tensorrt"),
        (("--backends", "eager"), "got eager for a bundle alone"),
        (("--peers", "magic"), "expected some of first-block-cache"),
        (("--metrics", "beauty"), "expected some of psnr"),
        (("--solvers", "magic"), "expected default, euler"),
        (("--predictors", "magic"), "expected one of zeus"),
        (("--plans", "FFXF", "--steps", 10), "got 4 steps; expected 10"),
        (("--plans", "none.json"), "which cannot be read"),
        (("--prompts", "prompts.txt"), "--prompts: got"),
        (("--label", 11), "label: got 11; expected 0..9"),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence(bundle, words, reason):
    done = call("compare", bundle, *words)
    assert done.exit_code == 1, done.output
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert reason in error


def test_presets_and_a_window_say_which_steps_are_full(bundle):
    words = ("--steps", 10, "--ratios", "2", "--window", "none", "--plans", "fast,FFXRFFXRFF", "--num-images", 1)
    done = call("compare", bundle, *words, "--rounds", 1, "--metrics", "psnr", "--guidance-scale", 1, "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert {row["label"]: row["plan"] for row in rows} == {
        "full": "F" * 10, "r = 2": "FFXRFXRFXF", "fast": "FFXRXFXRXF", "FFXRFFXRFF": "FFXRFFXRFF",
    }  # fmt: skip
    assert (
        "window: got 'wide'; expected one of default, flow, none" in call("compare", bundle, "--window", "wide").stderr
    )


def test_the_studies_are_no_command():
    done = call("study", "memory", "bundle")
    assert done.exit_code == 2
    assert "No such command 'study'" in done.stderr
