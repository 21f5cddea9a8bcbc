"""(2, -1) is the best rule there is where psi'' is bounded, and the only linear one. With noise it is not the best.

Steps are 1 apart; the newest output is at 0, those before at -1, -2, ...; the next is at 1. |psi''| is at most K.

Theorem 1. No rule, linear or not, on any number of earlier outputs has a worst error below K. That of (2, -1) is K;
           reuse, and all else that is not exact on lines, has no bound.
Theorem 2. The worst error of every other linear rule exceeds K: it is K (1 + k^2 / (1 + k)) at least, where k > 0 is
           the rule's Peano kernel at -1.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from zeus_trt.zeus_graph import Plan, Predictor


def read_weights(name):
    row = Predictor.parse(name).rows(Plan("FFXF"))[2]
    return np.array([row.get(1, 0.0), row.get(0, 0.0)])


def find_worst_error(weights):
    """Over all outputs with |psi''| <= 1, for weights on the outputs at 0, -1, -2, ...; exact.

    The error is the integral of psi'' times Peano's kernel, which is linear between the outputs, so the worst error
    is the integral of the kernel's absolute value.
    """
    places = -np.arange(len(weights) + 0.0)
    if abs(np.sum(weights) - 1) > 1e-9 or abs(places @ weights - 1) > 1e-9:
        return np.inf
    knots = np.array([1.0, *places])
    kernel = np.maximum(places - knots[:, None], 0) @ weights - np.maximum(1 - knots, 0)
    left, right = kernel[1:], kernel[:-1]
    total = np.abs(left) + np.abs(right)
    crossing = np.divide(left**2 + right**2, 2 * total, out=np.zeros_like(total), where=total > 0)
    return np.where(left * right < 0, crossing, total / 2).sum()


def bend(free):
    """All rules that are exact on lines: (2, -1) plus amounts of second differences, the kernel at -1, -2, ..."""
    weights = np.array([2.0, -1.0, *np.zeros(len(free))])
    for place, amount in enumerate(free):
        weights[place : place + 3] += amount * np.array([1.0, -2.0, 1.0])
    return weights


def make_perfect_spline(place):
    """psi'' = 1 on (-1, 1), then -1, 1, -1, ... on the intervals to the left: 0 at 0 and at all negative integers."""
    fraction = place - np.floor(place)
    wave = fraction * (fraction - 1) / 2 * np.where(np.floor(place) % 2 == 0, -1, 1)
    return np.where(place >= -1, place * (place + 1) / 2, wave)


def test_the_weights_of_the_product_have_the_worst_error_k():
    for name in ("zeus", "zeus-paper", "zeus-previous-full", "lagrange-2", "local-2", "extrapolate"):
        assert find_worst_error(read_weights(name)) == pytest.approx(1.0, abs=1e-12)
    assert find_worst_error(read_weights("reuse")) == np.inf


def test_no_rule_beats_it_from_any_number_of_outputs():
    """psi and -psi are 0 at every earlier output, so a rule cannot tell them apart; at the next they are 1 and -1."""
    assert np.all(make_perfect_spline(np.arange(0, -50, -1.0)) == 0)
    assert make_perfect_spline(1.0) == 1
    places = np.linspace(-6, 1, 7 * 64 + 1)
    second = np.diff(make_perfect_spline(places), n=2) * 64**2
    assert np.abs(second).max() == pytest.approx(1.0, abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5).filter(lambda free: max(map(abs, free)) > 0.01))
def test_every_other_linear_rule_errs_more(free):
    worst = find_worst_error(bend(free))
    assert worst > 1 + 1e-6 * max(map(abs, free)) ** 2
    assert worst >= 1 + max(free[0], 0) ** 2 / (1 + abs(free[0])) - 1e-9


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_search_for_the_least_worst_error_ends_at_it(count):
    """From random rules on three outputs and more."""
    generator = np.random.default_rng(count)
    for _ in range(3):
        start = generator.uniform(-2, 2, count - 2)
        found = minimize(lambda free: find_worst_error(bend(free)), start, method="Powell", options={"xtol": 1e-9})
        assert found.fun == pytest.approx(1.0, abs=1e-6)
        assert bend(found.x)[:2] == pytest.approx([2.0, -1.0], abs=2e-2)


def test_a_polynomial_through_three_outputs_errs_more():
    """(3, -3, 1), where psi'' alone is bounded: 1 + k^2 / (1 + k) at k = 1."""
    row = Predictor.parse("lagrange-3").rows(Plan("FFFXF"))[3]
    weights = [row[2], row[1], row[0]]
    assert weights == pytest.approx(bend([1.0]))
    assert find_worst_error(weights) == pytest.approx(1.5)


def test_it_is_not_the_best_for_noise():
    """Of the rules exact on lines, the least-squares line has the least squared weights.

    They sum to 5 on two outputs, (2, -1), and to 7/3 on three. Its worst error there is 5/3 K: less noise, more bias.
    """
    for count, squares, worst in ((2, 5.0, 1.0), (3, 7 / 3, 5 / 3)):
        conditions = np.array([np.ones(count), -np.arange(count)])
        weights = np.linalg.lstsq(conditions, [1.0, 1.0], rcond=None)[0]
        assert weights @ weights == pytest.approx(squares)
        assert find_worst_error(weights) == pytest.approx(worst)
