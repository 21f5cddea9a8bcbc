"""What a calibration left in a bundle is chosen by aim: over HTTP, in files of requests, and by `zeus-trt run`."""

import json

import pytest
from batch_requests import write
from click.testing import CliRunner
from http_service import POST
from starlette.testclient import TestClient

from zeus_trt.calibrating import run_calibration
from zeus_trt.cli import main
from zeus_trt.generating import generate_batch
from zeus_trt.serving.app import create_app
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 12
FEW = {"steps": STEPS, "num_trajectories": 2, "num_validation": 1, "num_held_out": 1}


@pytest.fixture(scope="module", params=["bundle", pytest.param("pipeline", marks=pytest.mark.slow)])
def offered(request, export_tiny, tiny_pipeline, export_tiny_pipeline, tmp_path_factory):
    """A client, the fields of a request, the plans of the menu, the cheapest first, and what is served."""
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
        yield client, {**asked, "steps": STEPS, "seed": 3}, curve.plans, served
    service.close()


def test_a_floor_chooses_the_cheapest_plan_that_has_it(offered):
    client, asked, plans, _ = offered
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
    client, asked, *_ = offered
    report = client.post(POST, json={**asked, **other, "min_psnr": 1.0}).json()["report"]
    reason = "no plan was calibrated for this solver, number of steps and guidance: every step is full"
    assert (report["plan"].strip("F"), report["reason"]) == ("", reason)


def test_a_deadline_chooses_the_best_plan_that_ends_in_time(offered):
    client, asked, plans, _ = offered
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


def test_files_of_requests_and_single_runs_take_a_floor(offered, tmp_path):
    _, asked, plans, served = offered
    floor = plans[1].chosen.psnr_db - 1e-3
    file = write(tmp_path / "asked.jsonl", {"id": "a", **asked, "min_psnr": floor})
    generate_batch(served, file, tmp_path)
    report = json.loads((tmp_path / "a.json").read_text())["report"]
    assert report["plan"] == str(plans[1].plan)
    assert report["reason"].startswith("the cheapest of at least ")
    content = ("--label", 1) if "label" in asked else ("--prompt", asked["prompt"], "--engine", served.engine)
    words = ("run", served.model, *content, "--steps", STEPS, "--min-psnr", floor, "-o", tmp_path / "one.png")
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["plan"] == str(plans[1].plan)
    assert "; plan: the cheapest of at least " in done.stderr
