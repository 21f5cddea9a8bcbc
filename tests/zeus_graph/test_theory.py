"""The theory, each claim in its theorem's own setting, measured on Predictor and StaticPolicy.

Steps lie on a uniform grid of size D in the time tau. psi is the output along the trajectory, psi_t that of the full
step t, and j counts the skipped steps after it. A block is one full step and the r skipped ones after it.

Where the paper's setting ends: its q_t, the output used just before t, is computed only in the first block after full
steps. From the second block on q_t is the previous full output for r >= 2, and a prediction for r = 1.
"""

from itertools import pairwise
from math import comb

import numpy as np
import pytest
import torch

from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.policy import StaticPolicy
from zeus_trt.zeus_graph.predictor import Predictor

SIZES = 2.0 ** -np.arange(10, 15)
"""Step sizes D: small enough for the leading order, large enough for float64."""

TAU = 0.7  # sin, cos and -sin are psi, psi' and psi'' there: all different, none small


def use_outputs(plan: Plan, predictor: str, computed: np.ndarray) -> np.ndarray:
    """The outputs a solver sees: ``computed`` (num_steps, ...) at full steps, predictions at skipped ones."""
    policy, used = StaticPolicy(plan.with_predictor(predictor)), []
    for step, output in enumerate(torch.from_numpy(computed)):
        if policy.is_full(step):
            policy.take(step, output)
        used.append(output if policy.is_full(step) else policy.predict(step))
    return torch.stack(used).numpy()


def weigh_full_outputs(plan: Plan, predictor: str) -> np.ndarray:
    """Row i: the weights of all full outputs in the output used at step i, chained predictions resolved."""
    return use_outputs(plan, predictor, np.eye(len(plan)))


def repeat_blocks(ratio: int, blocks: int) -> Plan:
    """One full step, then blocks, then the last full step: F (F X R ...) (F X R ...) F."""
    last = 1 + blocks * (ratio + 1)
    return Plan.from_full_steps(last + 1, [0, *range(1, last + 1, ratio + 1)])


def sum_blocks(plan: Plan, used: np.ndarray) -> np.ndarray:
    """Sums of the outputs used in every block of ``repeat_blocks``."""
    borders = plan.full_steps[1:]
    return np.array([used[start:stop].sum(axis=0) for start, stop in pairwise(borders)])


def measure_bias(plan: Plan, predictor: str, t: int) -> np.ndarray:
    """Predicted minus true output, (sizes, num_steps), of psi = sin with the full step t at tau = TAU."""
    tau = TAU + SIZES[:, None] * (np.arange(len(plan)) - t)
    psi = np.sin(tau)
    return use_outputs(plan, predictor, psi.T.copy()).T - psi


def check_order(bias: np.ndarray, order: int, constant: float) -> None:
    """Asserts bias = constant D^order psi^(order)(TAU) (1 + O(D)): the slope, and the constant at every D."""
    derivative = {1: np.cos(TAU), 2: -np.sin(TAU)}[order]
    slope = np.polyfit(np.log(SIZES), np.log(np.abs(bias)), 1)[0]
    assert slope == pytest.approx(order, abs=0.02)
    assert np.all(np.abs(bias / (SIZES**order * derivative) / constant - 1) < 40 * SIZES)


# Weights of extrapolation


@pytest.mark.parametrize("k", [1, 2, 3])
def test_lagrange_norm(k):
    """Extrapolating one step from k + 1 equispaced points: squared norm C(2k+2, k+1) - 1, for k = 1: 5.

    The weights are (-1)^(m+1) C(k+1, m), m = 1 .. k+1. The sum of C(k+1, m)^2 over m = 0 .. k+1 is C(2k+2, k+1) by
    Vandermonde's identity; the term m = 0 belongs to the predicted point. The ZEUS paper's theorem drops
    the - 1 that a sum from m = 1 has.
    """
    plan = Plan("F" * (k + 1) + "XF")
    row = Predictor.parse(f"lagrange-{k + 1}").rows(plan)[k + 1]
    assert [row[k + 1 - m] for m in range(1, k + 2)] == pytest.approx(
        [(-1) ** (m + 1) * comb(k + 1, m) for m in range(1, k + 2)]
    )
    assert sum(weight**2 for weight in row.values()) == pytest.approx(comb(2 * k + 2, k + 1) - 1, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_lagrange_is_exact_up_to_its_degree_only(k):
    steps = np.arange(k + 3.0)
    plan = Plan("F" * (k + 1) + "XF")
    errors = [use_outputs(plan, f"lagrange-{k + 1}", steps**p)[k + 1] - (k + 1.0) ** p for p in range(k + 2)]
    assert errors[:-1] == pytest.approx([0.0] * (k + 1), abs=1e-11)
    assert abs(errors[-1]) > 0.5


# Bias


@pytest.mark.parametrize("predictor", ["zeus", "zeus-paper", "zeus-previous-full", "linear-grid@index", "extrapolate"])
def test_two_computed_outputs_predict_affine_outputs_exactly(predictor):
    computed = np.array([1.0, 8.0]) + np.outer(np.arange(4.0), [3.0, -0.5])
    np.testing.assert_array_equal(use_outputs(Plan("FFXF"), predictor, computed), computed)


def test_bias_of_two_computed_outputs():
    """2 psi_t - psi_before - psi_next is a second difference: - D^2 psi'' to leading order."""
    check_order(measure_bias(Plan("FFXF"), "zeus", 1)[:, 2], 2, -1)


@pytest.mark.parametrize("j", [1, 2, 3, 4, 5])
def test_bias_of_extrapolate(j):
    """Predictor-only: - j (j+1) / 2 D^2 psi''."""
    check_order(measure_bias(Plan("FFXRXRXF"), "extrapolate", 1)[:, 1 + j], 2, -j * (j + 1) / 2)


@pytest.mark.parametrize("j", [1, 2, 3, 4, 5])
def test_bias_of_reuse(j):
    """- j D psi'."""
    check_order(measure_bias(Plan("FFXRXRXF"), "reuse", 1)[:, 1 + j], 1, -j)


@pytest.mark.parametrize("predictor", ["zeus", "zeus-paper", "zeus-previous-full"])
@pytest.mark.parametrize("j", [1, 2, 3, 4, 5])
def test_bias_of_interleaved_in_the_first_block(predictor, j):
    """Both outputs computed: - D^2 psi'' at j = 1, - j D psi' at even j, - (j-1) D psi' at odd j > 1."""
    bias = measure_bias(Plan("FFXRXRXF"), predictor, 1)[:, 1 + j]
    if j == 1:
        check_order(bias, 2, -1)
    else:
        check_order(bias, 1, -j if j % 2 == 0 else -(j - 1))


@pytest.mark.parametrize("ratio", [2, 3, 4, 5])
def test_bias_of_zeus_in_later_blocks(ratio):
    """q_t is r + 1 steps back: (r+1-j) D psi' at odd j, so no value is of second order, and - j D psi' at even j."""
    plan = repeat_blocks(ratio, 3)
    t = plan.full_steps[-2]
    bias = measure_bias(plan, "zeus", t)
    for j in range(1, ratio + 1):
        check_order(bias[:, t + j], 1, ratio + 1 - j if j % 2 else -j)


def test_bias_of_zeus_at_ratio_1_stays_second_order():
    """q_t is the last prediction: the bias obeys e_n = - D^2 psi'' - e_(n-1), so it vanishes in every other block."""
    plan = repeat_blocks(1, 6)
    for n, t in enumerate(plan.full_steps[1:-1]):
        bias = measure_bias(plan, "zeus", t)[:, t + 1]
        if n % 2 == 0:
            check_order(bias, 2, -1)
        else:
            assert np.all(np.abs(bias) < 10 * SIZES**3)


# Variance, for outputs with independent noise of variance 1


@pytest.mark.parametrize(
    ("predictor", "ratios"),
    [("zeus", (2, 3, 4, 5, 6, 7)), ("zeus-paper", (2, 4, 6)), ("zeus-previous-full", (1, 2, 3, 4, 5, 6, 7))],
)
def test_variance_of_interleaved_never_exceeds_5(predictor, ratios):
    """psi_t and q_t both computed: 5 at extrapolated steps, 1 at reused ones, in every block."""
    for ratio in ratios:
        plan = repeat_blocks(ratio, 6)
        variance = (weigh_full_outputs(plan, predictor) ** 2).sum(axis=1)
        assert variance.tolist() == [{"F": 1, "X": 5, "R": 1}[letter] for letter in plan.steps]


@pytest.mark.parametrize(("predictor", "ratio"), [("zeus", 1), ("zeus-paper", 1), ("zeus-paper", 3), ("zeus-paper", 5)])
def test_variance_grows_where_q_is_a_prediction(predictor, ratio):
    """q_t predicted: 5, 9, 13, ... in successive blocks. Hence zeus takes the previous full output at odd r > 1."""
    plan = repeat_blocks(ratio, 6)
    variance = (weigh_full_outputs(plan, predictor) ** 2).sum(axis=1)
    assert [variance[t + 1] for t in plan.full_steps[1:-1]] == [5, 9, 13, 17, 21, 25]


def test_variance_of_extrapolate():
    """(j+1)^2 + j^2 while before_t is computed; j^2 times its variance where it is not: it explodes."""
    ratio = 4
    plan = repeat_blocks(ratio, 3)
    variance = (weigh_full_outputs(plan, "extrapolate") ** 2).sum(axis=1)
    before = 1.0
    for t in plan.full_steps[1:-1]:
        expected = [(j + 1) ** 2 + j**2 * before for j in range(1, ratio + 1)]
        assert variance[t + 1 : t + 1 + ratio] == pytest.approx(expected, rel=1e-12)
        before = expected[-1]
    assert [variance[2], variance[3], variance[4], variance[5]] == [5, 13, 25, 41]
    assert before > 10_000


def test_extrapolate_is_the_chained_line():
    """Its closed form is 2 psi_t - psi_before applied to its own predictions again and again."""
    plan = repeat_blocks(4, 3)
    used = use_outputs(plan, "extrapolate", np.random.default_rng(0).integers(-9, 10, (len(plan), 5)) * 1.0)
    for step, letter in enumerate(plan.steps):
        if letter != "F":
            np.testing.assert_allclose(used[step], 2 * used[step - 1] - used[step - 2], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(("predictor", "ratio"), [("zeus", 3), ("zeus", 1), ("extrapolate", 3)])
def test_monte_carlo_agrees_with_the_weights(predictor, ratio):
    """Mean: the weights on the means. Variance: their squared norm. Both within 4 standard errors."""
    samples = 100_000
    plan = repeat_blocks(ratio, 2)
    noise = np.random.default_rng(1).standard_normal((len(plan), samples))
    means = 3.0 + 0.5 * np.arange(len(plan))
    used = use_outputs(plan, predictor, means[:, None] + noise)
    weights = weigh_full_outputs(plan, predictor)
    variance = (weights**2).sum(axis=1)
    z_of_mean = (used.mean(axis=1) - weights @ means) / np.sqrt(variance / samples)
    z_of_variance = (used.var(axis=1) / variance - 1) / np.sqrt(2 / samples)
    assert np.abs(z_of_mean).max() < 4
    assert np.abs(z_of_variance).max() < 4


# Block sums: what a first-order solver on a uniform grid sees

AFFINE = (1.5, -0.75)  # value at step 0 and slope per step: exact in binary, as are all sums below


def make_affine(plan: Plan) -> np.ndarray:
    return AFFINE[0] + AFFINE[1] * np.arange(len(plan))


@pytest.mark.parametrize("predictor", ["zeus", "zeus-paper", "zeus-previous-full"])
@pytest.mark.parametrize("ratio", [2, 4, 6])
def test_even_ratio_keeps_block_sums_of_affine_outputs(predictor, ratio):
    """r/2 extrapolations, each (r+1) slopes ahead, sum to 1 + 2 + ... + r slopes, although no single value is right.

    From the second block on. In the first, q_t is one step back and the sum lacks r^2 / 2 slopes.
    """
    plan = repeat_blocks(ratio, 5)
    computed = make_affine(plan)
    used = use_outputs(plan, predictor, computed)
    excess = sum_blocks(plan, used) - sum_blocks(plan, computed)
    assert excess.tolist() == [-AFFINE[1] * ratio**2 / 2, 0, 0, 0, 0]
    skipped = [i for i in range(plan.full_steps[2], len(plan)) if not plan.is_full(i)]
    assert np.all(used[skipped] != computed[skipped])


@pytest.mark.parametrize(("predictor", "ratio"), [("zeus", 3), ("zeus", 5), ("zeus-previous-full", 1)])
def test_odd_ratio_does_not_keep_block_sums(predictor, ratio):
    """(r+1)/2 extrapolations by (r+1) slopes: (r+1)/2 slopes too much in every block whose q_t is r + 1 steps back."""
    plan = repeat_blocks(ratio, 5)
    computed = make_affine(plan)
    excess = sum_blocks(plan, use_outputs(plan, predictor, computed)) - sum_blocks(plan, computed)
    assert excess[1:].tolist() == [AFFINE[1] * (ratio + 1) / 2] * 4


def test_ratio_1_of_zeus_is_exact_on_affine_outputs():
    """q_t is the exact prediction just before t: every single value is exact, unlike at other odd r."""
    plan = repeat_blocks(1, 6)
    computed = make_affine(plan)
    np.testing.assert_array_equal(use_outputs(plan, "zeus", computed), computed)


@pytest.mark.parametrize("ratio", [2, 4, 6])
def test_even_ratio_makes_block_sums_of_second_order(ratio):
    """On curved outputs a block sum errs by - r (r+1) (5r+4) / 12 D^2 psi'', its values by multiples of D psi'."""
    plan = repeat_blocks(ratio, 3)
    t = plan.full_steps[-2]
    bias = measure_bias(plan, "zeus", t)[:, t : t + ratio + 1]
    check_order(bias.sum(axis=1), 2, -ratio * (ratio + 1) * (5 * ratio + 4) / 12)


@pytest.mark.parametrize("ratio", [3, 5])
def test_odd_ratio_leaves_block_sums_of_first_order(ratio):
    plan = repeat_blocks(ratio, 3)
    t = plan.full_steps[-2]
    bias = measure_bias(plan, "zeus", t)[:, t : t + ratio + 1]
    check_order(bias.sum(axis=1), 1, (ratio + 1) / 2)


def integrate_euler(used: np.ndarray, size: float) -> np.ndarray:
    """x at every step of dx/dtau = psi from x = 0, and after the last one."""
    return np.concatenate([[0.0], np.cumsum(size * used)])


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6])
def test_euler_is_exact_at_block_borders_for_even_ratios(ratio):
    """Against Euler with every step full, from the second block on: exact there and at the end for even r, no drift.

    Between the borders it is off (r = 1 never is), and odd r > 1 drifts by the same amount in every block.
    """
    plan = repeat_blocks(ratio, 6)
    size = 0.125
    computed = make_affine(plan)
    used = use_outputs(plan, "zeus", computed)
    first, *_ = borders = plan.full_steps[2:]
    used[:first] = computed[:first]
    error = integrate_euler(used, size) - integrate_euler(computed, size)
    drift = 0.0 if ratio == 1 or ratio % 2 == 0 else size * AFFINE[1] * (ratio + 1) / 2
    assert error[list(borders)].tolist() == [drift * block for block in range(len(borders))]
    assert error[-1] == drift * (len(borders) - 1)
    assert ratio == 1 or np.all(error[[t + 2 for t in borders[:-1]]] != 0)
