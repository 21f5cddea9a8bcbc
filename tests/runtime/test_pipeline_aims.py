"""accelerate(min_psnr=): a pipeline runs the calibrated plans of its engine's bundle."""

import diffusers
import pytest
import torch
from menu_double import STEPS, offer_plans

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Session, accelerate
from zeus_trt.runtime.menu import Aim

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pipeline(tiny_pipeline):
    return diffusers.DiffusionPipeline.from_pretrained(tiny_pipeline)


@pytest.fixture(scope="module")
def session(export_tiny_pipeline):
    with Session(export_tiny_pipeline()) as session:
        yield offer_plans(session, guidance_scale=7.5)


def run(pipeline, session, called=None, **asked):
    with accelerate(pipeline, engine=session, **asked) as fast:
        call = {"num_inference_steps": STEPS, "output_type": "pt", **(called or {})}
        return fast("a red square", generator=torch.Generator().manual_seed(1), **call).images, fast.report


@pytest.mark.parametrize(
    ("asked", "plan", "reason"),
    [
        ({"min_psnr": 25}, "FFXXFXXF", "the cheapest of at least 25 dB (30.0 dB, 4 of 8 calls)"),
        ({"min_psnr": 41}, "FFFFFFFF", "no calibrated plan has 41 dB: every step is full"),
        ({"aim": Aim(fits=lambda offer: offer.cost < 5)}, "FFXXFXXF", "the best that fits the deadline (30.0 dB, 4 of"),
        ({"aim": Aim(fits=lambda offer: False), "ratio": 0}, "FFFFFFFF", "asked for"),
        ({}, "", "the default"),
    ],
)
def test_a_run_gets_the_plan_of_its_aim(pipeline, session, asked, plan, reason):
    images, report = run(pipeline, session, **asked)
    assert report.reason.startswith(reason)
    if plan:
        assert report.plan == plan
        assert torch.equal(images, run(pipeline, session, plan=plan)[0])


@pytest.mark.parametrize("other", ["steps", "scheduler", "guidance"])
def test_a_plan_of_another_run_is_not_offered(pipeline, session, other):
    called = {"steps": {"num_inference_steps": STEPS + 1}, "guidance": {"guidance_scale": 3.0}}.get(other)
    scheduler = diffusers.DDIMScheduler(beta_start=1e-3) if other == "scheduler" else None
    report = run(pipeline, session, called, min_psnr=10, scheduler=scheduler)[1]
    assert report.plan.strip("F") == ""
    assert report.reason.startswith("no plan was calibrated for this solver")


def test_the_default_scale_is_given_by_the_pipeline_and_an_argument_counts_by_place(pipeline, session):
    with accelerate(pipeline, engine=session, min_psnr=25) as fast:
        fast("a red square", None, None, STEPS, output_type="pt")
    assert fast.report.plan == "FFXXFXXF"


@pytest.mark.parametrize(
    ("engine", "more", "words"), [(False, {}, "without an engine"), (True, {"ratio": 1}, "beside")]
)
def test_a_floor_needs_a_bundle_and_no_plan(pipeline, session, engine, more, words):
    with pytest.raises(ZeusError, match=f"^min_psnr: got it {words}"):
        accelerate(pipeline, engine=session if engine else None, min_psnr=30, **more)
