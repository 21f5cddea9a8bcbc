"""Requests over HTTP that say what they need, answered by the plans that a calibration left in the bundle."""

import pytest
from http_service import POST
from starlette.testclient import TestClient

from zeus_trt.calibrating import run_calibration
from zeus_trt.serving.app import create_app
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 12
FEW = {"steps": STEPS, "num_trajectories": 2, "num_validation": 1, "num_held_out": 1}


@pytest.fixture(scope="module", params=["bundle", pytest.param("pipeline", marks=pytest.mark.slow)])
def offered(request, export_tiny, tiny_pipeline, export_tiny_pipeline, tmp_path_factory):
    """A client, the fields of a request, and the plans of the menu, the cheapest first."""
    if request.param == "bundle":
        bundle = export_tiny().path
        curve = run_calibration(bundle, None, **FEW)
        served, asked = ServedModel(bundle), {"label": 1}
    else:
        bundle = export_tiny_pipeline().path
        prompts = tmp_path_factory.mktemp("prompts") / "prompts.txt"
        prompts.write_text("a red square\n")
        curve = run_calibration(tiny_pipeline, None, engine=bundle, prompts=prompts, **FEW)
        served, asked = ServedModel(tiny_pipeline, bundle), {"prompt": "a red square"}
    service = served.open_service()
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client, {**asked, "steps": STEPS, "seed": 3}, curve.plans
    service.close()


def test_a_floor_chooses_the_cheapest_plan_that_has_it(offered):
    client, asked, plans = offered
    for one in plans:
        floor = one.chosen.psnr_db - 1e-3
        report = client.post(POST, json={**asked, "min_psnr": floor}).json()["report"]
        assert report["reason"].startswith(f"the cheapest of at least {floor:g} dB (")
        assert report["plan"] == str(one.plan)
    best = max(one.chosen.psnr_db for one in plans)
    report = client.post(POST, json={**asked, "min_psnr": best + 1}).json()["report"]
    assert (report["nfe"], report["reason"].endswith("every step is full")) == (STEPS, True)


@pytest.mark.parametrize("other", [{"steps": STEPS + 1}, {"guidance_scale": 3.3}])
def test_a_plan_counts_for_the_run_that_it_was_measured_with(offered, other):
    client, asked, _ = offered
    report = client.post(POST, json={**asked, **other, "min_psnr": 1.0}).json()["report"]
    reason = "no plan was calibrated for this solver, number of steps and guidance: every step is full"
    assert (report["plan"].strip("F"), report["reason"]) == ("", reason)


def test_a_deadline_chooses_the_best_plan_that_ends_in_time(offered):
    client, asked, plans = offered
    late = client.post(POST, json={**asked, "deadline_ms": 1e-3}).json()["report"]
    assert late["plan"] == str(plans[0].plan)
    assert late["reason"].startswith("none fits the deadline: the cheapest (")
    floor = plans[1].chosen.psnr_db - 1e-3
    late = client.post(POST, json={**asked, "deadline_ms": 1e-3, "min_psnr": floor}).json()["report"]
    assert late["plan"] == str(plans[1].plan)
    early = client.post(POST, json={**asked, "deadline_ms": 6e5}).json()["report"]
    assert (early["nfe"], early["reason"]) == (STEPS, "the best that fits the deadline (inf dB, 12 of 12 calls)")
    plain = client.post(POST, json={**asked, "deadline_ms": 1e-3, "ratio": 0}).json()["report"]
    assert (plain["nfe"], plain["reason"]) == (STEPS, "asked for")
