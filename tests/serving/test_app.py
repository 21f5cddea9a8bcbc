"""The application over HTTP: answers, errors, limits, keys and streams."""

import base64
import io
import json

import pytest
import torch
from http_service import POST, Gated, make_service
from PIL import Image
from starlette.testclient import TestClient

from zeus_trt.errors import ZeusError
from zeus_trt.pictures import to_images
from zeus_trt.serving.app import create_app
from zeus_trt.serving.limits import Limits
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def service():
    service = make_service()
    yield service
    service.close()


@pytest.fixture(scope="module")
def client(service):
    limits = Limits(images=3, steps=20, prompt=9, body=400)
    with TestClient(create_app(service, limits), raise_server_exceptions=False) as client:
        yield client


def read_picture(data):
    return Image.open(io.BytesIO(base64.b64decode(data["b64_json"])))


def read_events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_picture_is_that_of_the_session(digits_bundle, open_session):
    from zeus_trt.serving.image_model import BundleModel
    from zeus_trt.serving.service import Service

    session = open_session("unet-flow")
    served = Service(lambda: BundleModel(session, 2.0, batch_sizes=[2]))
    with TestClient(create_app(served)) as client:
        answer = client.post(POST, json={"label": 7, "steps": 6, "ratio": 2, "seed": 5}).json()
    expected = session.generate({"class_labels": torch.tensor([7])}, num_steps=6, ratio=2, seed=[5], guidance_scale=2.0)
    picture = read_picture(answer["data"][0])
    assert picture.tobytes() == to_images(expected.latents)[0].tobytes()
    assert answer["report"]["plan"] == expected.report.plan
    assert (answer["report"]["nfe"], answer["size"], answer["seed"]) == (expected.report.nfe, "32x32", 5)
    served.model._batcher.close()


def test_a_bundle_runs_on_the_device_that_is_named(digits_bundle):
    service = ServedModel(digits_bundle("unet-flow"), device="cpu").open_service()
    service.close()


def test_n_pictures_have_seeds_of_their_own(client):
    both = client.post(POST, json={"n": 2, "label": 3, "steps": 4, "seed": 8}).json()["data"]
    second = client.post(POST, json={"label": 3, "steps": 4, "seed": 9}).json()["data"]
    assert read_picture(both[1]).tobytes() == read_picture(second[0]).tobytes() != read_picture(both[0]).tobytes()


def test_conditioning_by_name_is_that_of_a_label(client):
    rest = {"steps": 4, "seed": 8, "n": 2}
    both = [client.post(POST, json={**rest, **one}).json() for one in ({"label": 3}, {"inputs": {"class_labels": 3}})]
    assert both[0]["data"] == both[1]["data"]


def test_openai_clients_may_send_their_fields(client):
    asked = {"prompt": "", "model": "toy", "user": "u", "n": 1, "size": "8x8", "response_format": "b64_json"}
    answer = client.post(POST, json={**asked, "steps": 3}).json()
    assert list(answer)[:2] == ["created", "data"]
    assert answer["seed"] >= 0


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"n": 4}, "n", "from 1 to 3"),
        ({"n": "1"}, "n", "Expected"),
        ({"steps": 21}, "steps", "from 1 to 20"),
        ({"colour": 1}, "colour", "unknown field"),
        ({"label": 99}, "label", "0..9"),
        ({"prompt": "a"}, "prompt", "without prompts"),
        ({"prompt": "0123456789"}, "prompt", "10 characters"),
        ({"negative_prompt": "a"}, "negative_prompt", "without prompts"),
        ({"size": "9x8"}, "size", "8x8"),
        ({"size": "99999x99999"}, "size", "pixels"),
        ({"size": "big"}, "size", "WIDTHxHEIGHT"),
        ({"plan": "plans/fast.json"}, "plan", "letters"),
        ({"plan": "/etc/passwd"}, "plan", "letters"),
        ({"plan": "FXF"}, "plan", "two full steps"),
        ({"plan": "FF", "ratio": 1}, "ratio", "beside"),
        ({"ratio": -1}, "ratio", "at least 0"),
        ({"seed": 2**63 - 1}, "seed", "expected"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"deadline_ms": 0}, "deadline_ms", "above 0"),
        ({"guidance_scale": -3}, "guidance_scale", "expected"),
        ({"min_psnr": 30, "plan": "FF"}, "min_psnr", "beside"),
        ({"label": 1, "inputs": {"x": [1]}}, "inputs", "beside"),
        ({"inputs": {"class_labels": "x"}}, "inputs", "nested lists"),
        ({"mode": "fast"}, "mode", "program"),
        ({"window": "wide"}, "window", "expected"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(client, body, param, words):
    for more in ({}, {"stream": True}):
        answer = client.post(POST, json={**body, **more})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert words in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert param is None or error["param"] == param


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"n": 1, "n": 1}', "application/json", 400),
        (b'{"guidance_scale": NaN}', "application/json", 400),
        (b"[" * 300, "application/json", 400),
        (b"\xff", "application/json", 400),
        (b" " * 401, "application/json", 413),
        (b"{}", "text/plain", 415),
    ],
)
def test_bodies_that_are_no_requests(client, content, kind, status):
    answer = client.post(POST, content=content, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"].count("expected") == 1


def test_a_stream_shows_every_step_and_the_picture(client):
    asked = {"label": 1, "plan": "FFXRF", "seed": 3}
    alone = client.post(POST, json=asked).json()
    answer = client.post(POST, json={**asked, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *steps, last = read_events(answer.text)
    assert "".join(step["kind"] for step in steps) == last["report"]["plan"] == "FFXRF"
    assert read_picture(steps[0]).size == (8, 8)
    assert last["type"] == "image_generation.completed"
    pixels = [torch.tensor(list(read_picture(one).tobytes())).int() for one in (last, alone["data"][0])]
    assert (pixels[0] - pixels[1]).abs().max() <= 1  # a step at a time, and not as a program


def test_a_floor_of_quality_is_kept_without_calibrated_plans(client):
    report = client.post(POST, json={"min_psnr": 30, "steps": 5}).json()["report"]
    assert report["plan"] == "FFFFF"
    assert "every step is full" in report["reason"]


def test_states_and_metrics(client, service):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    assert client.get("/v1/model").json()["labels"] == 10
    assert client.get("/none").json()["error"]["code"] == "not_found"
    assert client.get(POST).status_code == 405
    for plan in ({"plan": "fast"}, {"plan": "ffxrf"}, {"min_psnr": 30}):
        assert client.post(POST, json={**plan, "steps": 5}).status_code == 200
    text = client.get("/metrics").text
    for name in ("queued", "batch_fill", "calls_total", "request_seconds_count"):
        assert f"zeus_trt_{name} " in text, name
    for plan in ("fast", "letters", "aim"):
        assert f'zeus_trt_plans_total{{plan="{plan}"}} ' in text, plan
    assert "ffxrf" not in text
    assert f"zeus_trt_calls_total {float(service.counters.calls)}" in text
    assert "/v1/images/generations" in client.get("/openapi.json").json()["paths"]


def test_a_key_is_needed_where_there_is_one(service):
    with TestClient(create_app(service, api_key="k" * 20)) as client:
        for headers in ({}, {"Authorization": "Bearer " + "j" * 20}, {"Authorization": "k" * 20}):
            for path in ("/v1/model", "/metrics"):
                assert client.get(path, headers=headers).json()["error"]["code"] == "invalid_api_key"
            assert client.post(POST, json={}, headers=headers).status_code == 401
        assert client.post(POST, json={"steps": 2}, headers={"Authorization": "Bearer " + "k" * 20}).status_code == 200
        assert client.get("/readyz").status_code == client.get("/").status_code == 200


def test_a_local_server_answers_to_local_names(service):
    with TestClient(create_app(service, hosts=["localhost"]), base_url="http://evil.example") as client:
        assert client.get("/healthz").status_code == 400
        assert client.get("/healthz", headers={"Host": "localhost:8000"}).status_code == 200


def test_a_full_queue_and_a_late_request():
    gate = Gated()
    gate.opened.clear()
    service = make_service(gate, max_active=1, max_queue=1)
    with TestClient(create_app(service, Limits(seconds=0.2))) as client:
        waiting = [service.submit(_ask(), 60) for _ in range(2)]
        assert gate.entered.wait(30)
        answer = client.post(POST, json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        waiting[1].cancel()
        answer = client.post(POST, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "time_limit")
        gate.opened.set()
        waiting[0].result(30)
    service.close()
    assert service.running == 0


def test_a_failing_engine_is_said_without_its_traceback():
    def fail(**inputs):
        raise KeyError("secret")

    service = make_service(fail)
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        for body in ({}, {"stream": True}):
            answer = client.post(POST, json=body)
            assert answer.status_code == 500
            assert "KeyError" in answer.json()["error"]["message"]
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
    service.close()


def test_reload_loses_no_request_and_drain_waits():
    gate = Gated()
    gate.opened.clear()
    service = make_service(gate)
    first, old = service.submit(_ask(), 60), service.model
    gate.entered.wait(30)
    gate.opened.set()
    service.reload()
    assert service.model is not old
    assert first.result(30).images
    assert service.submit(_ask(), 60).result(30).images
    assert service.counters.finished == 2
    service.drain()
    with TestClient(create_app(service)) as client:
        assert client.get("/readyz").status_code == client.post(POST, json={}).status_code == 503
    service.close()


def test_a_model_that_does_not_open_again_leaves_the_old_one():
    service = make_service()
    service._open = lambda: (_ for _ in ()).throw(ZeusError("bundle: got nothing; expected one. Export it."))
    with pytest.raises(ZeusError, match="Export it"):
        service.reload()
    assert service.submit(_ask(), 60).result(30).images
    service.close()


def _ask():
    from zeus_trt.serving.image_request import ImageRequest

    return ImageRequest(steps=2, seed=0)
