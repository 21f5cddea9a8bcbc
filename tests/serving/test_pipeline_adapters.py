"""A pipeline with the adapter of its bundle in the engine alone: run, and served per request."""

import base64
import io
import runpy

import pytest
from checkout import ROOT
from diffusers import DiffusionPipeline
from http_service import POST
from PIL import Image, ImageChops
from starlette.testclient import TestClient

from zeus_trt.export import add_adapter
from zeus_trt.open_model import open_model
from zeus_trt.pictures import to_images
from zeus_trt.serving.app import create_app
from zeus_trt.serving_model import ServedModel
from zeus_trt.zeus_graph import choose_plan

pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def file(tiny_pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ink")
    runpy.run_path(str(ROOT / "examples/tiny_lora.py"))["write_lora"](tiny_pipeline, folder)
    return folder / "pytorch_lora_weights.safetensors"


@pytest.fixture(scope="module")
def bundle(export_tiny_pipeline, file):
    return add_adapter(export_tiny_pipeline(), file, "ink").path


@pytest.fixture(scope="module")
def expected(tiny_pipeline, file):
    """What the pipeline itself makes with the adapter at 0.7."""
    pipeline = DiffusionPipeline.from_pretrained(tiny_pipeline)
    pipeline.load_lora_weights(file, adapter_name="ink")
    pipeline.set_adapters("ink", 0.7)
    pipeline.set_progress_bar_config(disable=True)
    import torch

    return pipeline("a cat", num_inference_steps=3, generator=torch.Generator().manual_seed(3)).images[0]


def differ(one, other):
    """The largest difference of two pictures, of 255."""
    return max(high for _, high in ImageChops.difference(one, other).getextrema())


def test_a_run_has_the_adapter_of_its_engine(tiny_pipeline, bundle, expected):
    workload = open_model(tiny_pipeline, prompts=["a cat"], engine=bundle, adapters=("ink:0.7",), seed=3)
    assert workload.describe()["adapter"] == "ink:0.7"
    made = workload.sample(choose_plan(ratio=0), [0], num_steps=3, backend="onnxruntime")
    assert differ(to_images(made.images)[0], expected) <= 1


def test_a_service_gives_each_request_its_own(tiny_pipeline, bundle, expected):
    service = ServedModel(tiny_pipeline, bundle, max_adapters=1).open_service()
    made = {}
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        for adapter in ("ink:0.7", None, "ink", "ink:0.7"):
            asked = {"prompt": "a cat", "steps": 3, "ratio": 0, "seed": 3, "adapter": adapter}
            answer = client.post(POST, json=asked)
            assert answer.status_code == 200, answer.text
            picture = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
            assert adapter not in made or made[adapter].tobytes() == picture.tobytes()
            made[adapter] = picture
        wrong = client.post(POST, json={"prompt": "a cat", "adapter": "oil"})
        assert wrong.status_code == 400
    service.close()
    assert differ(made["ink:0.7"], expected) <= 1
    assert differ(made[None], expected) > 1
