"""A model is opened anew while requests run: none is lost, and the new bundle answers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from http_service import POST, make_service, run_in_thread
from menu_double import PLANS, STEPS, calibrate

from zeus_trt.export.folder import add_plans
from zeus_trt.runtime import Bundle, Session
from zeus_trt.serving.image_request import read_request
from zeus_trt.serving.limits import Limits
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")


def count_threads():
    return sum(thread.name.startswith("zeus-trt") for thread in threading.enumerate())


def test_no_request_is_lost_while_models_come_and_go():
    before = count_threads()
    service, ended = make_service(), threading.Event()
    models = [service.model]

    def reload():
        while not ended.is_set():
            service.reload()
            models.append(service.model)

    with run_in_thread(service) as port, httpx2.Client(timeout=60) as client:

        def ask(number):
            body = {"steps": 2 + number % 9, "seed": number, "n": 1 + number % 2, "stream": number % 3 == 0}
            answer = client.post(f"http://127.0.0.1:{port}{POST}", json=body)
            return answer.status_code, answer.text.count('"b64_json"'), "error" in answer.text

        reloading = threading.Thread(target=reload)
        reloading.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, range(120)))
        finally:
            ended.set()
            reloading.join(60)
    assert [status for status, _, _ in answers] == [200] * 120
    assert all(pictures >= 1 + number % 2 for number, (_, pictures, _) in enumerate(answers))
    assert not any(failed for _, _, failed in answers)
    assert len(models) > 5
    counters = service.counters
    assert (counters.submitted, counters.finished, counters.active, counters.queued) == (120, 120, 0, 0)
    service.close()
    assert count_threads() == before


def test_the_plans_of_the_new_bundle_are_chosen(export_tiny):
    bundle = export_tiny()
    service = ServedModel(bundle.path).open_service()
    asked = read_request({"label": 1, "steps": STEPS, "min_psnr": 25}, Limits())
    first = service.submit(asked, 60).result(60).report
    with Session(bundle) as session:
        add_plans(bundle, "key", [calibrate(session, *one, guidance_scale=2.0) for one in PLANS.items()])
    assert Bundle.open(bundle.path).manifest != bundle.manifest
    before = service.submit(asked, 60).result(60).report
    service.reload()
    after = service.submit(asked, 60).result(60).report
    service.close()
    assert (first.plan, before.plan, after.plan) == ("F" * STEPS, "F" * STEPS, "FFXXFXXF")
