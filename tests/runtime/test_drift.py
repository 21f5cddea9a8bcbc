"""Drift: what is measured, and the full steps that it inserts."""

import math

import pytest
import torch
from toy_bundle import make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import draw_noise
from zeus_trt.zeus_graph import PREDICTORS, Plan, Predictor

NOISE = draw_noise((2, 4, 8, 8), seed=1)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_measuring_changes_nothing(predictor):
    session = make_session()
    settings = {"plan": session.plan(20, 3), "num_steps": 20, "noise": NOISE, "predictor": predictor}
    plain = session.generate(mode="step", **settings)
    measured = session.generate(drift_threshold=math.inf, **settings)
    assert torch.equal(measured.latents, plain.latents)
    assert measured.report.mode == "step"
    plan = settings["plan"]
    assert [step for step, _ in measured.report.drift] == [
        step for step in plan.full_steps if step and not plan.is_full(step - 1)
    ]
    assert all(0 < value < math.inf for _, value in measured.report.drift)
    assert plain.report.drift == ()


def test_drift_is_the_distance_to_the_prediction():
    session = make_session()
    plan = Plan("FFFXRFFXFF")
    steps = list(session.sample(plan=plan, num_steps=10, noise=NOISE, drift_threshold=math.inf))
    outputs = [step.output for step in steps]
    third = 2 * outputs[2] - outputs[1]  # step 5 would be the third skipped one after step 2
    for step, predicted in ((5, third), (8, outputs[6])):
        of_rows = [(a - b).norm() / a.norm() for a, b in zip(outputs[step], predicted, strict=True)]
        assert float(steps[step].drift) == pytest.approx(float(max(of_rows)), rel=1e-4)
    assert [step.index for step in steps if step.drift is not None] == [5, 8]


def test_the_plan_that_ran_is_reported():
    session = make_session()
    plan = Plan("FFFXRXFXRXFXRXFFFFFF")
    settings = {"plan": plan, "num_steps": 20, "noise": NOISE}
    report = session.generate(drift_threshold=1e-9, **settings).report
    assert report.plan == "FFFXRXFFXRFFXRFFFFFF"
    assert report.nfe == report.engine_calls == report.plan.count("F") == plan.nfe + 2
    assert report.speedup_bound == 20 / report.nfe
    by_hand = session.generate(mode="step", **{**settings, "plan": Plan(report.plan)})
    assert torch.equal(session.generate(drift_threshold=1e-9, **settings).latents, by_hand.latents)


def test_what_cannot_be_measured_is_refused():
    session = make_session()
    settings = {"plan": Plan("FFXF"), "num_steps": 4, "noise": NOISE}
    table = Predictor.from_table({2: {0: -1.0, 1: 2.0}})
    with pytest.raises(ZeusError, match="drift_threshold: got a predictor table"):
        session.generate(predictor=table, drift_threshold=0.1, **settings)
    with pytest.raises(ZeusError, match="mode: got program with drift"):
        session.generate(mode="program", drift_threshold=0.1, **settings)
    for threshold in (0, -1, float("nan"), True, "0.1"):
        with pytest.raises(ZeusError, match="drift_threshold: got"):
            session.generate(drift_threshold=threshold, **settings)
