"""The policies: which steps run, and what stands in for the others."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import DriftPolicy, OpenPolicy, Plan, Predictor, StaticPolicy


def run(policy, outputs):
    """Feeds ``outputs`` (one per step) to the full steps; returns what every step used, and the most that was kept."""
    used, most = [], 0
    for step, output in enumerate(outputs):
        if policy.is_full(step):
            policy.take(step, output)
            used.append(output.clone())
        else:
            used.append(policy.predict(step))
        most = max(most, policy.num_kept)
    return used, most


def test_zeus_by_hand():
    outputs = [torch.tensor([float(i**2)]) for i in range(8)]
    used, _ = run(StaticPolicy(Plan("FFXRFXRF")), outputs)
    assert [float(output) for output in used] == [0, 1, 2, 1, 16, 31, 16, 49]


def test_it_owns_copies():
    policy = StaticPolicy(Plan("FFXRF"))
    buffer = torch.ones(3)  # an engine that writes every output to the same place
    policy.take(0, buffer)
    policy.take(1, buffer.fill_(2.0))
    buffer.fill_(torch.nan)
    policy.predict(2).fill_(torch.nan)
    policy_output = policy.predict(3)
    assert torch.equal(policy_output, torch.full((3,), 2.0))


@pytest.mark.parametrize("predictor", ["zeus", "zeus-paper", "zeus-previous-full", "reuse", "extrapolate"])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4])
def test_memory_does_not_grow_with_steps(predictor, ratio):
    kept = {
        run(StaticPolicy(Plan.uniform(n, ratio).with_predictor(predictor)), [torch.zeros(1)] * n)[1]
        for n in (20, 50, 200)
    }
    assert len(kept) == 1
    assert kept.pop() <= 3


def test_nothing_is_kept_when_every_step_is_full():
    assert run(StaticPolicy(Plan.uniform(20, 0)), [torch.zeros(1)] * 20)[1] == 0


def test_nothing_is_kept_at_the_end():
    policy = StaticPolicy(Plan.uniform(20, 3).with_predictor("zeus-paper"))
    run(policy, [torch.zeros(1)] * 20)
    assert policy.num_kept == 0


def test_steps_come_in_order():
    policy = StaticPolicy(Plan("FFXF"))
    with pytest.raises(ValueError, match="out of turn"):
        policy.take(1, torch.zeros(1))
    policy.take(0, torch.zeros(1))
    with pytest.raises(ValueError, match="out of turn"):
        policy.predict(1)


def test_an_open_plan_runs_as_the_static_one_and_keeps_six_outputs_at_most():
    plan, outputs = Plan.uniform(30, 3, (0.0, 0.0)), [torch.tensor([float(i**2)]) for i in range(30)]
    for name in ("zeus", "zeus-paper", "lagrange-3", "reuse"):
        expected, _ = run(StaticPolicy(plan.with_predictor(name)), outputs)
        assert torch.equal(torch.cat(run(OpenPolicy(plan.with_predictor(name)), outputs)[0]), torch.cat(expected)), name


def test_a_step_ahead_is_made_full_while_the_plan_runs():
    policy = OpenPolicy(Plan("FFXRXRF"))
    for step in (0, 1):
        policy.take(step, torch.tensor([float(step)]))
    assert float(policy.predict(2)) == 2
    policy.plan = policy.plan.with_full(3)
    assert policy.is_full(3)
    assert str(policy.plan) == "FFXFXRF"
    policy.take(3, torch.tensor([9.0]))
    assert float(policy.predict(4)) == 2 * 9 - 1 * 2  # one step was skipped: the line through the step before


@pytest.mark.parametrize(("letters", "became"), [("FFXRXRF", "FFXRXRF"), ("FFFXFXF", "FFFXFFF")])
def test_another_shape_makes_the_next_step_full(letters, became):
    policy = OpenPolicy(Plan(letters))
    for step, letter in enumerate(letters[:5]):
        if letter == "F":
            assert policy.take(step, torch.ones(3 if step == 4 else 2)) is None
        else:
            policy.predict(step)
    assert str(policy.plan) == became


def test_rows_of_a_table_that_read_another_shape_are_not_used():
    rows = {3: {2: 1.0}, 5: {4: 2.0, 2: -1.0}, 6: {4: 1.0}, 8: {7: 2.0, 1: -1.0}, 9: {7: 1.0}}
    policy = StaticPolicy(Plan("FFFXFXXFXXF", Predictor.from_table(rows)))
    for step in range(3):
        policy.take(step, torch.ones(2))
    policy.predict(3)
    policy.take(4, torch.ones(3))
    assert str(policy.plan) == "FFFXFFXFFXF"
    policy.take(5, torch.ones(3))
    assert policy.predict(6).shape == (3,)


def test_drift_makes_the_next_step_full():
    policy = DriftPolicy(Plan("FFXFXRF"), threshold=0.5)
    drifts = [policy.take(step, torch.tensor([float(step)])) for step in (0, 1)]
    policy.predict(2)
    drifts.append(policy.take(3, torch.tensor([-3.0])))
    assert drifts[:2] == [None, None]
    assert float(drifts[2]) == pytest.approx(abs(-3 - 1) / 3)  # two steps after step 1 it would be reused
    assert str(policy.plan) == "FFXFFXF"
    with pytest.raises(ZeusError, match="drift_threshold: got a predictor table"):
        DriftPolicy(Plan("FFXF", Predictor.from_table({2: {1: 1.0}})))
