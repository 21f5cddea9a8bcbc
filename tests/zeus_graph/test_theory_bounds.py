"""The theory behind two outputs: (2, -1) alone is exact on lines, higher orders amplify, and where reuse is better."""

import numpy as np
import pytest

from zeus_trt.zeus_graph import Plan, Predictor

ONE_STEP = Plan("FFXF")


def read_weights(name, plan=ONE_STEP):
    step = plan.steps.index("X")
    row = Predictor.parse(name).rows(plan)[step]
    return np.array([row.get(step - 1 - m, 0.0) for m in range(step)])


def test_the_weights_on_two_outputs_that_are_exact_on_lines_are_unique():
    """Constants: a + b = 1. Slope 1, psi_t at 0: 0 a - 1 b = 1. The matrix is regular, so there is one solution."""
    conditions = np.array([[1.0, 1.0], [0.0, -1.0]])
    assert np.linalg.matrix_rank(conditions) == 2
    assert np.linalg.solve(conditions, [1.0, 1.0]) == pytest.approx([2.0, -1.0], abs=1e-15)
    for name in ("zeus", "zeus-paper", "zeus-previous-full", "lagrange-2", "local-2", "extrapolate"):
        assert read_weights(name) == pytest.approx([2.0, -1.0], abs=1e-15)


@pytest.mark.parametrize("change", [(0.1, -0.1), (-0.1, 0.1), (0.0, 0.1), (0.1, 0.0), (-1.0, 1.0), (-1e-3, 0.0)])
def test_other_weights_err_without_bound_on_lines(change):
    """Over all outputs with a second derivative of at most 1 the worst error of (2, -1) is D^2; others have none."""
    slopes = np.array([0.0, 1.0, 1e3, 1e6])
    weights = np.array([2.0, -1.0]) + change
    errors = np.abs(weights @ np.array([np.zeros(4), -slopes]) - slopes + (weights.sum() - 1) * 1e6)
    assert np.abs(np.array([2.0, -1.0]) @ np.array([np.zeros(4), -slopes]) - slopes).max() == 0
    assert errors.max() > 900


@pytest.mark.parametrize("size", [0.5, 0.1, 0.02])
def test_the_worst_error_on_curves(size):
    """|2 psi_t - psi_before - psi_next| <= D^2 max |psi''|, and the parabola reaches it."""
    curves = {
        "parabola": lambda tau: tau**2 / 2,
        "sine": np.sin,
        "cosine": np.cos,
        "kink": lambda tau: np.where(tau > 0, tau**2, -(tau**2)) / 2,
    }
    errors = {name: abs(2 * psi(0.0) - psi(-size) - psi(size)) for name, psi in curves.items()}
    assert max(errors.values()) == pytest.approx(errors["parabola"], rel=1e-12) == pytest.approx(size**2, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_lebesgue_constant_doubles_with_the_order(order):
    """One step from k equispaced outputs: the absolute weights sum to 2^k - 1, the worst growth of an error in them."""
    plan = Plan("F" * max(order, 2) + "XF")
    weights = read_weights("reuse" if order == 1 else f"lagrange-{order}", plan)
    assert np.abs(weights).sum() == pytest.approx(2**order - 1, rel=1e-12)
    worst = np.sign(weights)
    assert weights @ worst == pytest.approx(2**order - 1, rel=1e-12)


@pytest.mark.parametrize("j", [1, 2, 3, 4])
def test_the_lebesgue_constant_of_a_line_grows_with_every_skipped_step(j):
    """(j + 1) + j for predictions alone; the interleaved scheme stays at 3 and 1."""
    plan = Plan("FFXRXRF")
    constants = {
        name: [sum(map(abs, row.values())) for row in Predictor.parse(name).rows(plan) if row]
        for name in ("extrapolate", "zeus")
    }
    assert constants["extrapolate"][j - 1] == 2 * j + 1
    assert constants["zeus"] == [3, 1, 3, 1]


def measure_mse(name, slope, curvature, noise, samples=200_000):
    """MSE of the first skipped step's prediction, for outputs slope tau + curvature tau^2 / 2 with noise."""
    computed = np.array([-slope + curvature / 2, 0.0])[:, None]  # at the steps before t and t; D is 1
    computed = computed + noise * np.random.default_rng(0).standard_normal((2, samples))
    before, at = computed
    weights = read_weights(name)
    return float(np.mean((weights[0] * at + weights[1] * before - (slope + curvature / 2)) ** 2))


@pytest.mark.parametrize("curvature", [0.0, 0.3])
@pytest.mark.parametrize(("noise", "winner"), [(0.9, "zeus"), (1.1, "reuse")])
def test_reuse_is_better_than_a_line_above_a_noise(curvature, noise, winner):
    """Bias and variance: (s + c/2)^2 + v for reuse, c^2 + 5 v for 2 psi_t - psi_before, for slope s and curvature c.

    They cross at v = ((s + c/2)^2 - c^2) / 4; ``noise`` is in units of that deviation.
    """
    slope = 1.0
    crossing = (((slope + curvature / 2) ** 2 - curvature**2) / 4) ** 0.5
    deviation = noise * crossing
    errors = {name: measure_mse(name, slope, curvature, deviation) for name in ("reuse", "zeus")}
    assert errors["reuse"] == pytest.approx((slope + curvature / 2) ** 2 + deviation**2, rel=0.01)
    assert errors["zeus"] == pytest.approx(curvature**2 + 5 * deviation**2, rel=0.01)
    assert min(errors, key=errors.get) == winner
