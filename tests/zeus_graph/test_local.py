"""local-k: Lagrange extrapolation through the outputs used at the full step t and the steps just before it."""

import numpy as np
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import DriftPolicy, OpenPolicy, Plan, Predictor, StaticPolicy

PLANS = [Plan.uniform(20, ratio, window) for ratio in (1, 2, 3, 4) for window in ((0.0, 0.0), (0.2, 0.1))]


def extrapolate(order: int, nodes: list[np.ndarray], j: int) -> np.ndarray:
    """The polynomial through outputs one step apart, newest first, j steps after the newest: the formulas by hand."""
    order = min(order, len(nodes))
    if order == 1:
        return nodes[0]
    if order == 2:
        return (j + 1) * nodes[0] - j * nodes[1]
    return (j + 1) * (j + 2) / 2 * nodes[0] - j * (j + 2) * nodes[1] + j * (j + 1) / 2 * nodes[2]


def use_rows(plan: Plan, name: str, computed: np.ndarray) -> np.ndarray:
    used: list[np.ndarray] = []
    for output, row in zip(computed, Predictor.parse(name).rows(plan), strict=True):
        used.append(
            output if row is None else np.sum([weight * used[source] for source, weight in row.items()], axis=0)
        )
    return np.array(used)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_rows_are_the_formula(plan, order):
    computed = np.random.default_rng(order).standard_normal((len(plan), 3))
    used = use_rows(plan, f"local-{order}", computed)
    for step in range(len(plan)):
        if plan.is_full(step):
            expected = computed[step]
        else:
            t = max(full for full in plan.full_steps if full < step)
            expected = extrapolate(order, list(used[t::-1][:3]), step - t)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(used[step], expected, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_chained_predictions_are_the_same(plan, order):
    """Each prediction from the outputs used at the steps right before it, one step ahead."""
    computed = np.random.default_rng(order).standard_normal((len(plan), 3))
    used = use_rows(plan, f"local-{order}", computed)
    for step in range(len(plan)):
        if not plan.is_full(step):
            expected = extrapolate(order, list(used[step - 1 :: -1][:3]), 1)
            np.testing.assert_allclose(used[step], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("local", "other"), [("local-1", "reuse"), ("local-2", "extrapolate")])
def test_low_orders_are_the_rules_that_have_names(local, other):
    for plan in PLANS:
        rows, others = (Predictor.parse(name).rows(plan) for name in (local, other))
        assert [row and pytest.approx(row) for row in rows] == list(others)


def test_a_grid_that_is_not_uniform():
    row = Predictor.parse("local-3@sigma").rows(Plan("FFFXF"), [10.0, 6.0, 3.0, 1.0, 0.0])[3]
    values = {0: 100.0, 1: 36.0, 2: 9.0}  # sigma squared: a polynomial of degree 2 is exact
    assert sum(weight * values[step] for step, weight in row.items()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("plan", [Plan("FRF"), Plan("FRRFRF")], ids=str)
def test_the_first_order_needs_one_full_step(plan):
    assert Predictor.parse("local-1").rows(plan)[1] == {0: 1.0}
    with pytest.raises(ZeusError, match="expected two"):
        Predictor.parse("local-2").rows(plan)


def test_equal_abscissae_are_refused():
    with pytest.raises(ZeusError, match="predictor local-3: got equal abscissae at steps 1 and 0"):
        Predictor.parse("local-3@timestep").rows(Plan("FFFXF"), [3.0, 3.0, 2.0, 1.0, 0.0])


def run_policy(policy, outputs):
    used = []
    for step, output in enumerate(outputs):
        if policy.is_full(step):
            policy.take(step, output)
        used.append(output if policy.is_full(step) else policy.predict(step))
    return torch.stack(used)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_policy_keeps_what_it_reads(plan, order):
    plan, outputs = plan.with_predictor(f"local-{order}"), torch.randn(len(plan), 3, dtype=torch.float64)
    expected = run_policy(StaticPolicy(plan), outputs)
    for policy in (OpenPolicy(plan), DriftPolicy(plan)):
        torch.testing.assert_close(run_policy(policy, outputs), expected, rtol=0, atol=0)
    rows = use_rows(plan, f"local-{order}", outputs.numpy())
    np.testing.assert_allclose(expected, rows, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(rows).max()))


def test_outputs_of_another_shape_are_not_read():
    policy = OpenPolicy(Plan("FFFFXFXXXF", "local-3"))
    for step in range(6):
        if policy.is_full(step):
            policy.take(step, torch.full((2 if step < 5 else 3,), float(step)))
        else:
            policy.predict(step)
    assert policy.is_full(6)
    policy.take(6, torch.full((3,), 6.0))
    assert policy.predict(7).tolist() == [7.0] * 3
