"""A pipeline of prompts over HTTP, by the engine of its bundle."""

import base64
import io
import json
import time

import pytest
import torch
from diffusers import DiffusionPipeline
from http_service import POST
from PIL import Image
from starlette.testclient import TestClient

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import accelerate
from zeus_trt.serving.app import create_app
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = {"prompt": "a red square", "steps": 6, "ratio": 1, "seed": 3}


@pytest.fixture(scope="module")
def bundle(export_tiny_pipeline):
    return export_tiny_pipeline().path


@pytest.fixture(scope="module")
def service(tiny_pipeline, bundle):
    service = ServedModel(tiny_pipeline, bundle).open_service()
    yield service
    service.close()


@pytest.fixture(scope="module")
def client(service):
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


def test_pictures_are_those_of_the_pipeline(client, tiny_pipeline, bundle):
    made = client.post(POST, json={**ASKED, "n": 2}).json()
    pictures = [Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))) for one in made["data"]]
    noise = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    with accelerate(DiffusionPipeline.from_pretrained(tiny_pipeline), 1, engine=bundle) as fast:
        expected = fast(["a red square"] * 2, num_inference_steps=6, generator=noise).images
    for picture, other in zip(pictures, expected, strict=True):
        pairs = zip(picture.tobytes(), other.tobytes(), strict=True)
        assert max(abs(one - two) for one, two in pairs) <= 1  # of 255: another order of rows
    assert made["report"]["plan"] == fast.report.plan
    assert client.get("/v1/model").json()["takes"] == "prompt"


def test_a_stream_tells_the_steps(client):
    lines = client.post(POST, json={**ASKED, "stream": True}).text.splitlines()
    *steps, end = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "".join(step["kind"] for step in steps) == end["report"]["plan"]
    assert end["b64_json"]
    assert not any("b64_json" in step for step in steps)


@pytest.mark.parametrize(
    "field",
    [{"mode": "program"}, {"inputs": {"sample": [1]}, "prompt": ""}, {"label": 1, "prompt": ""}, {"prompt": ""}],
)
def test_what_a_pipeline_does_not_take_is_refused(client, field):
    asked = {**ASKED, "ratio": None, **field}
    answer = client.post(POST, json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(field))


def test_a_request_ends_at_its_limit_or_when_it_is_cancelled(service):
    from zeus_trt.serving.image_request import read_request
    from zeus_trt.serving.limits import Limits

    asked = read_request(json.dumps(ASKED | {"steps": 50}).encode(), Limits())
    before = service.counters
    with pytest.raises(ZeusError, match="time_limit"):
        service.submit(asked, 0.01).result()
    future = service.submit(asked, 60.0)
    future.cancel()
    while service.counters.active + service.counters.queued:
        time.sleep(0.01)
    assert service.counters.cancelled == before.cancelled + 1
    assert service.counters.failed == before.failed + 1


def test_a_pipeline_without_its_bundle_is_refused(tiny_pipeline):
    with pytest.raises(ZeusError, match="engine: got nothing for a pipeline"):
        ServedModel(tiny_pipeline).open_service()
