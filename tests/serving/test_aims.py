"""Requests that say what they need instead of a plan."""

import pytest
import torch
from menu_double import STEPS, offer_plans
from serving_requests import Gate
from toy_bundle import DIGITS, LABELS, make_session

from zeus_trt.runtime import draw_noise
from zeus_trt.serving import Batcher

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = {"class_labels": torch.tensor([3])}


def settings(seed=0, **more):
    return {"num_steps": STEPS, "noise": draw_noise((1, 4, 8, 8), seed), **more}


def open_batcher(engine=None, **options):
    """A batcher whose calls are said to take a second each, and whose session has the menu."""
    session = make_session(LABELS, labels=DIGITS, engine=engine or Gate())
    batcher = Batcher(session, **options)
    offer_plans(batcher.session)
    batcher._dispatcher.measure_call = lambda: 1.0
    return batcher


@pytest.mark.parametrize(
    ("asked", "plan", "reason"),
    [
        ({"min_psnr": 25}, "FFXXFXXF", "the cheapest of at least 25 dB (30.0 dB, 4 of 8 calls)"),
        ({"deadline": 5.9}, "FFXXFXXF", "the best that fits the deadline (30.0 dB, 4 of 8 calls)"),
        ({"deadline": 50}, "FFFFFFFF", "the best that fits the deadline (inf dB, 8 of 8 calls)"),
        ({"deadline": 2}, "FFXXXXXF", "none fits the deadline: the cheapest (20.0 dB, 3 of 8 calls)"),
        ({"deadline": 2, "min_psnr": 35}, "FFFFFXFF", "none fits the deadline: the cheapest of at least 35 dB "),
        ({"deadline": 2, "plan": "FFFFXFFF"}, "FFFFXFFF", "asked for"),
        ({"deadline": 2, "ratio": 0}, "FFFFFFFF", "asked for"),
        ({}, None, "the default"),
    ],
)
def test_a_request_gets_the_plan_of_its_aim(asked, plan, reason):
    with open_batcher() as batcher:
        report = batcher.submit(ONE, **settings(**asked)).result(30).report
    assert plan in (None, report.plan)
    assert report.reason.startswith(reason)


def test_without_a_menu_a_floor_makes_every_step_full_and_a_deadline_changes_nothing():
    with Batcher(make_session(LABELS, labels=DIGITS)) as batcher:
        full, plain = (
            batcher.submit(ONE, **settings(**asked)).result(30).report for asked in ({"min_psnr": 9}, {"deadline": 9})
        )
    assert full.plan == "F" * STEPS
    assert full.reason == "no plan was calibrated for this solver, number of steps and guidance: every step is full"
    assert plain.reason == "no plan was calibrated for this solver, number of steps and guidance: the default"


def test_a_long_queue_goes_down_the_menu_to_the_floor_and_explicit_plans_stay():
    gate = Gate(is_open=False)
    with open_batcher(gate, max_active=1) as batcher:
        first = batcher.submit(ONE, **settings(ratio=0))
        gate.entered.wait(30)
        asked = [
            {"deadline": 9.0},
            {"deadline": 9.5, "min_psnr": 35},
            {"deadline": 10.0, "ratio": 0},
            {"deadline": 30.0},
        ]
        futures = [batcher.submit(ONE, **settings(k, **one)) for k, one in enumerate(asked)]
        gate.opened.set()
        reports = [future.result(30).report for future in (*futures, first)]
    plans = ["FFXXXXXF", "FFFFFXFF", "F" * STEPS, "F" * STEPS, "F" * STEPS]  # the last aim waits alone
    assert [report.plan for report in reports] == plans
    assert reports[0].reason == "none fits the deadline with 3 waiting: the cheapest (20.0 dB, 3 of 8 calls)"
    assert "with 2 waiting: the cheapest of at least 35 dB" in reports[1].reason
