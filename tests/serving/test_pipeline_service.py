"""A pipeline of prompts over HTTP, by the engine of its bundle."""

import base64
import io
import json
import time

import pytest
import torch
from browser import open_page
from diffusers import DiffusionPipeline
from http_service import POST
from PIL import Image
from starlette.testclient import TestClient

from zeus_trt.errors import ZeusError
from zeus_trt.pictures import to_images
from zeus_trt.pipeline_model import PipelineModel
from zeus_trt.runtime import Session, accelerate
from zeus_trt.serving.app import create_app
from zeus_trt.serving.image_request import read_request
from zeus_trt.serving.limits import Limits
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


def read_picture(data):
    return Image.open(io.BytesIO(base64.b64decode(data["b64_json"])))


def test_pictures_are_those_of_the_pipeline(client, tiny_pipeline, bundle):
    made = client.post(POST, json={**ASKED, "n": 2}).json()
    pictures = [read_picture(one) for one in made["data"]]
    noise = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    with accelerate(DiffusionPipeline.from_pretrained(tiny_pipeline), 1, engine=bundle) as fast:
        expected = fast(["a red square"] * 2, num_inference_steps=6, generator=noise).images
    for picture, other in zip(pictures, expected, strict=True):
        pairs = zip(picture.tobytes(), other.tobytes(), strict=True)
        assert max(abs(one - two) for one, two in pairs) <= 1  # of 255: another order of rows
    assert made["report"]["plan"] == fast.report.plan
    assert client.get("/v1/model").json()["takes"] == "prompt"


def read_stream(client, **asked):
    lines = client.post(POST, json={**ASKED, "stream": True, **asked}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_a_stream_tells_the_steps(client):
    *steps, end = read_stream(client)
    assert "".join(step["kind"] for step in steps) == end["report"]["plan"]
    assert end["b64_json"]
    assert not any("b64_json" in step for step in steps)


def test_a_stream_shows_the_pictures_so_far_that_are_asked_for(client, tiny_pipeline, bundle):
    *steps, end = read_stream(client, partial_images=2)
    assert "".join(step["kind"] for step in steps) == end["report"]["plan"]
    shown = {step["partial_image_index"]: read_picture(step) for step in steps if "b64_json" in step}
    assert [*shown] == [1, 3]  # of steps 0 to 5
    latents = []
    pipeline = DiffusionPipeline.from_pretrained(tiny_pipeline)
    with accelerate(pipeline, 1, engine=bundle, on_step=lambda step: latents.append(step.latents.clone())) as fast:
        fast("a red square", num_inference_steps=6, generator=torch.Generator().manual_seed(3))
    for index, picture in shown.items():
        with torch.no_grad():
            pixels = pipeline.vae.decode(latents[index] / pipeline.vae.config.scaling_factor).sample
        pairs = zip(picture.tobytes(), to_images(pixels)[0].tobytes(), strict=True)
        assert max(abs(one - two) for one, two in pairs) <= 1
    *steps, _ = read_stream(client, partial_images=0)
    assert not any("b64_json" in step for step in steps)


def test_the_page_shows_previews_of_a_prompt(service):
    with open_page(service) as page:
        page.fill("#prompt", "a red square")
        page.evaluate("document.getElementById('steps').value = 8")
        page.evaluate(
            "window.shown = []; new MutationObserver(all => all.forEach(one => window.shown.push(one.target.alt)))"
            ".observe(document.getElementById('pictures'), {subtree: true, attributeFilter: ['src']})"
        )
        page.click("#go")
        page.wait_for_selector("body[data-done]")
        assert page.inner_text("#error") == ""
        assert len(page.inner_text("#strip").replace("\n", "")) == 8
        assert "of 8" in page.inner_text("#facts")
        shown = page.evaluate("window.shown")
        assert shown[-1] == "The picture"
        assert len({alt for alt in shown if alt.startswith("Step ")}) >= 2


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


def test_a_request_that_is_due_earlier_begins_earlier(tiny_pipeline, bundle):
    pipeline, session = DiffusionPipeline.from_pretrained(tiny_pipeline), Session(bundle)
    pipeline.set_progress_bar_config(disable=True)
    model, ended = PipelineModel(pipeline, session, max_active=1), []
    asked = [{"steps": 20, "ratio": 0}, {}, {"deadline_ms": 5e4}, {"deadline_ms": 1e4}]
    futures = [model.submit(read_request({**ASKED, **one}, Limits())) for one in asked]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: ended.append(number))
    reports = [future.result(60).report for future in futures]
    model.close()
    assert ended == [0, 3, 2, 1]
    assert {report.reason for report in reports} == {"asked for"}


def test_a_pipeline_without_its_bundle_is_refused(tiny_pipeline):
    with pytest.raises(ZeusError, match="engine: got nothing for a pipeline"):
        ServedModel(tiny_pipeline).open_service()
