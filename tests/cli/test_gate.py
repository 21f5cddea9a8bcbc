"""The gate: exit code and figures."""

import json

import pytest
from click.testing import CliRunner

from zeus_trt.cli import main
from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.runtime import Session
from zeus_trt.zeus_graph import Plan

STEPS, SAMPLES = 12, 4


def call(bundle, *words):
    words = [*map(str, words), "--steps", str(STEPS), "--num-held-out", str(SAMPLES)]
    return CliRunner().invoke(main, ["gate", str(bundle), *words])


@pytest.fixture(scope="module")
def bundle(digits_bundle):
    return digits_bundle("unet-flow")


@pytest.mark.extra
def test_a_plan_passes_or_fails_by_its_measured_quality(bundle):
    passed = call(bundle, "--plan", "turbo", "--min-psnr", 10, "--json")
    assert passed.exit_code == 0, passed.output
    result = json.loads(passed.stdout.splitlines()[-1])
    assert result["passes"] is True
    assert result["worst_db"] <= result["psnr_db"] == pytest.approx(measure(bundle), abs=0.01)
    failed = call(bundle, "--plan", "turbo", "--min-psnr", result["psnr_db"] + 0.1)
    assert failed.exit_code == 1
    assert "gate: got" in failed.stderr
    assert "expected" in failed.stderr
    assert "fails" in failed.stdout


def measure(bundle):
    """The mean PSNR of the samples after those that calibration takes by default."""
    session, first = Session(bundle), 16 + 16
    labels = [number % 10 for number in range(first, first + SAMPLES)]
    seeds = [*range(first, first + SAMPLES)]
    plans = (Plan("F" * STEPS), Plan.uniform(STEPS, 4))
    full, fast = (
        session.generate(
            session.label_images(labels, SAMPLES), plan=plan, num_steps=STEPS, seed=seeds, guidance_scale=2.0
        ).latents.clamp(-1, 1)
        for plan in plans
    )
    return sum(measure_psnr(one[None], other[None]) for one, other in zip(fast, full, strict=True)) / SAMPLES


@pytest.mark.parametrize(
    ("plan", "reason"), [("FFF", "got 3 steps; expected 12"), ("nothing.json", "nothing.json"), ("QQQ", "expected 12")]
)
def test_a_plan_that_cannot_run_is_refused(bundle, plan, reason):
    refused = call(bundle, "--plan", plan, "--min-psnr", 30)
    assert refused.exit_code == 1
    assert reason in refused.stderr


@pytest.mark.parametrize("floor", [1, 900])
def test_json_has_the_figures_of_a_mixed_plan_whether_it_passes_or_not(quantized_tiny, floor):
    plan = "FQXRQFXRFQQF"
    done = call(quantized_tiny.path, "--plan", plan, "--min-psnr", floor, "--json")
    result = json.loads(done.stdout)
    assert (result["plan"]["steps"], result["min_psnr"], result["num_samples"]) == (plan, floor, SAMPLES)
    assert result["passes"] is (floor <= result["psnr_db"])
    assert done.exit_code == (0 if result["passes"] else 1)
    assert ("gate: got" in done.stderr) is not result["passes"]


def test_q_needs_a_quantized_graph(bundle):
    refused = call(bundle, "--plan", "F" + "Q" * (STEPS - 1), "--min-psnr", 30)
    assert refused.exit_code == 1
    assert "zeus-trt quantize" in refused.stderr
