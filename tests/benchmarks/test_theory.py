"""The theory's benchmark: what it measures on made-up outputs, and that it runs and writes its figures."""

import json
import runpy

import numpy as np
import pytest
from checkout import ROOT
from click.testing import CliRunner

from zeus_trt.zeus_graph import Plan

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "benchmarks")
    THEORY = runpy.run_path(str(ROOT / "benchmarks" / "theory.py"))


def make_recording(slope=0.0, curvature=0.0, noise=0.0, seeds=4, elements=400):
    """Outputs slope i + curvature i^2 / 2 with white noise; the run at r = 2 adds an error that changes its sign."""
    step = np.arange(50.0)[:, None, None]
    generator = np.random.default_rng(7)  # not the seed of the noise that is added
    real = slope * step + curvature * step**2 / 2 + noise * generator.standard_normal((50, seeds, elements))
    return THEORY["Recording"](real, real + 0.1 * (-1) ** step, Plan.uniform(50, 2), real.mean(axis=2))


def test_bias_is_that_of_the_leading_order_on_curves():
    found = THEORY["measure_schemes"](make_recording(slope=3.0, curvature=0.01))
    assert found["steps"] == list(range(10, 43, 3))
    later = slice(1, None)  # the first block reads the output just before, and errs otherwise
    assert found["interleaved"]["bias"][later] == pytest.approx(found["interleaved"]["bias_in_theory"][later])
    assert found["interleaved"]["bias_in_theory"] == pytest.approx([0.035] * 11)
    assert found["reuse"]["bias"] == pytest.approx(found["reuse"]["bias_in_theory"], rel=0.01)
    assert max(found["reuse"]["variance"] + found["interleaved"]["variance"]) < 1e-20


def test_variance_is_that_of_the_weights_on_noise():
    found = THEORY["measure_schemes"](make_recording(slope=0.1, noise=1.0, seeds=32))
    unbiased = 31 / 32
    for scheme, expected in (("reuse", 1.5), ("interleaved", 3.0)):
        assert np.mean(found[scheme]["variance"][1:]) == pytest.approx(expected * unbiased, rel=0.03)
        assert found[scheme]["noise_in_theory"] == pytest.approx(expected, rel=0.05)
    growth = np.array(found["extrapolate"]["variance"])
    assert growth[-1] / growth[-2] == pytest.approx(4.0, rel=0.05)


def test_errors_of_alternating_sign_grow_by_the_lebesgue_constant():
    for one in THEORY["measure_orders"](make_recording(slope=1.0))["orders"]:
        assert one["lebesgue"] == pytest.approx(2 ** one["order"] - 1)
        assert one["growth"] == pytest.approx([one["lebesgue"]] * 3)


def test_the_noise_where_reuse_wins_is_measured_as_predicted():
    found = THEORY["measure_crossover"](make_recording(slope=0.2, curvature=0.0, noise=0.02))
    assert found["own_noise"] == pytest.approx(0.02, rel=0.05)
    assert found["measured"] == pytest.approx(found["predicted"], rel=0.06)
    assert found["predicted"][0] == pytest.approx((0.2**2 / 4 - 0.02**2) ** 0.5, rel=0.02)


def test_no_crossing_where_reuse_is_better_without_added_noise():
    found = THEORY["measure_crossover"](make_recording(slope=0.01, noise=0.1))
    assert found["predicted"] == found["measured"] == [None] * 5


def test_it_runs_and_writes_its_figures(digits_bundle, tmp_path):
    words = ["--model", str(digits_bundle("unet-flow")), "--num-samples", "2", "--steps", "15"]
    words += ["--cache", str(tmp_path), "--figures", str(tmp_path / "figures")]
    done = CliRunner().invoke(THEORY["main"], words)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout.splitlines()[-1])
    assert (data["benchmark"], data["num_samples"], data["steps"]) == ("theory", 2, 15)
    (model,) = data["models"].values()
    assert model["schemes"]["steps"] == [3, 6, 9]
    assert len(model["means"]["mean"]) == 15
    assert [one["order"] for one in model["orders"]] == [1, 2, 3, 4]
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "theory-bias-variance.png", "theory-mean-output.png", "theory-orders.png", "theory-crossover.png",
    }  # fmt: skip
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (tmp_path / "figures").iterdir())
