"""Plans by what they are to reach."""

import math

import pytest
import torch
from menu_double import STEPS, offer_plans
from toy_bundle import make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Guidance, draw_noise
from zeus_trt.runtime.menu import Aim


def run(session, **settings):
    return session.generate(num_steps=STEPS, noise=draw_noise((1, 4, 8, 8), 0), **settings)


@pytest.mark.parametrize(
    ("floor", "plan", "reason"),
    [
        (10, "FFXXXXXF", "the cheapest of at least 10 dB (20.0 dB, 3 of 8 calls)"),
        (29, "FFXXFXXF", "the cheapest of at least 29 dB (30.0 dB, 4 of 8 calls)"),
        (30.0, "FFXXFXXF", "the cheapest of at least 30 dB (30.0 dB, 4 of 8 calls)"),
        (35, "FFFFFXFF", "the cheapest of at least 35 dB (40.0 dB, 7 of 8 calls)"),
        (41, "FFFFFFFF", "no calibrated plan has 41 dB: every step is full"),
    ],
)
def test_a_floor_gets_the_cheapest_plan_above_it(floor, plan, reason):
    session = offer_plans(make_session())
    made = run(session, min_psnr=floor)
    assert (made.report.plan, made.report.reason) == (plan, reason)
    assert torch.equal(made.latents, run(session, plan=plan).latents)
    assert next(session.sample(num_steps=STEPS, noise=draw_noise((1, 4, 8, 8), 0), min_psnr=floor)).index == 0


@pytest.mark.parametrize("other", [{"num_steps": 7}, {"scale": 1.5}, {"fingerprint": "other"}])
def test_a_plan_of_another_run_is_not_offered(other):
    session = offer_plans(make_session())
    asked = {"num_steps": STEPS, "scale": 1.0, "fingerprint": session.solver.program(STEPS).fingerprint, **other}
    listed = session.menu.list(asked["num_steps"], Guidance(asked["scale"]), lambda: asked["fingerprint"])
    assert listed == ()
    plan, reason = Aim(30.0).choose(listed, 7)
    assert (str(plan), reason.endswith("every step is full")) == ("FFFFFFF", True)


@pytest.mark.parametrize(
    ("guidance", "count"),
    [
        (Guidance(2.0), 3),
        (Guidance(2.2), 3),
        (Guidance(2.21), 0),
        (Guidance(1.0), 0),
        (Guidance(2.0, rescale=0.5), 0),
        (Guidance(2.0, interval=(0.2, 0.8)), 0),
    ],
)
def test_guidance_may_differ_by_a_tenth_of_the_scale(guidance, count):
    session = offer_plans(make_session(), guidance_scale=2.0)
    assert len(session.menu.list(STEPS, guidance, lambda: session.solver.program(STEPS).fingerprint)) == count


def test_time_chooses_the_best_plan_that_fits_and_never_one_below_the_floor():
    session = offer_plans(make_session())
    offers = session.menu.list(STEPS, Guidance(), lambda: session.solver.program(STEPS).fingerprint)

    def choose(floor, calls):
        plan, reason = Aim(floor, lambda offer: offer.cost <= calls, " behind 2").choose(offers, STEPS)
        return str(plan), reason.partition(" behind 2")[0]

    assert choose(None, 5) == ("FFXXFXXF", "the best that fits the deadline")
    assert choose(None, 8) == ("FFFFFFFF", "the best that fits the deadline")
    assert choose(None, 1) == ("FFXXXXXF", "none fits the deadline")
    assert choose(35, 3) == ("FFFFFXFF", "none fits the deadline")
    assert choose(99, 3) == ("FFFFFFFF", "no calibrated plan has 99 dB: every step is full")
    assert Aim(None, lambda offer: True).choose((), STEPS)[0] is None


@pytest.mark.parametrize("more", [{"ratio": 2}, {"plan": "FFFFFF"}, {"preset": "fast"}, {"predictor": "zeus"}])
def test_a_floor_excludes_a_plan(more):
    with pytest.raises(ZeusError, match=r"^min_psnr: got it beside a plan or a ratio; expected one"):
        run(make_session(), min_psnr=30, **more)


@pytest.mark.parametrize("floor", [math.nan, "30", True])
def test_a_floor_is_a_number(floor):
    with pytest.raises(ZeusError, match=r"^min_psnr: got"):
        run(make_session(), min_psnr=floor)
