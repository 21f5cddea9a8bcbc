"""Requests that name adapters: over HTTP, in files, and with fewer open engines than adapters."""

import base64
import io
import threading
from concurrent.futures import wait

import pytest
import torch
from http_service import POST
from PIL import Image
from small_adapter import write_two
from starlette.testclient import TestClient

from zeus_trt.errors import ZeusError
from zeus_trt.pictures import to_images
from zeus_trt.request_file import read_requests
from zeus_trt.runtime import Bundle, Session, draw_noise
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.serving import Batcher
from zeus_trt.serving.app import create_app
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")
CHOICES = (None, "ink", "style", "ink:0.6,style:0.1", "ink:0.1")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return Bundle.open(write_two(tmp_path_factory.mktemp("two") / "bundle"))


@pytest.fixture(scope="module")
def client(bundle):
    service = ServedModel(bundle.path, backend="onnxruntime", max_adapters=2).open_service()
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client
    service.close()


def ask(seed=0):
    return {"noise": draw_noise((1, 1, 4, 4), seed), "num_steps": 5, "ratio": 0}


@pytest.fixture(scope="module")
def expected(bundle):
    made = {}
    for choice in CHOICES:
        with Session(bundle, backend="onnxruntime", adapter=choice) as session:
            made[choice] = session.generate(**ask()).latents
    assert len({to_images(latents)[0].tobytes() for latents in made.values()}) == len(CHOICES)
    return made


@pytest.mark.parametrize("choice", CHOICES)
def test_a_request_over_http_has_its_adapter(client, expected, choice):
    answer = client.post(POST, json={"adapter": choice, "steps": 5, "ratio": 0, "seed": 0}).json()
    picture = Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"])))
    assert picture.tobytes() == to_images(expected[choice])[0].tobytes()
    assert answer["report"]["nfe"] == 5


@pytest.mark.parametrize(("adapter", "message"), [
    ("other", "adapter: got 'other' for a model with ink, style; expected one that it has"),
    ("ink,other:0.5", "adapter: got 'other'"),
    ("ink:x", "adapter: got 'ink:x'; expected a name, or names with scales"),
    ("../ink", "adapter: got '../ink'"),
    ({"ink": 1}, "request: got JSON that does not fit"),
])  # fmt: skip
def test_wrong_names_are_refused(client, adapter, message):
    answer = client.post(POST, json={"adapter": adapter})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
    assert answer.json()["error"]["param"] == "adapter"


def test_a_client_reads_which_there_are(client):
    assert client.get("/v1/model").json()["adapters"] == ["ink", "style"]


def test_a_file_of_requests_names_adapters(bundle, tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"id": "a", "adapter": "ink"}\n{"id": "b"}\n')
    one, other = read_requests(file, bundle.manifest)
    assert (one.request.adapter, other.request.adapter) == ("ink", None)
    file.write_text('{"id": "a"}\n{"id": "b", "adapter": "oil"}\n')
    with pytest.raises(ZeusError, match=r"line 2 of some\.jsonl: adapter: got 'oil' for a model with ink, style"):
        read_requests(file, bundle.manifest)


@pytest.fixture
def watched(monkeypatch):
    """The digests of engines with an adapter that are open; how many were, at most; and how many were opened."""
    state = {"open": set(), "most": 0, "opened": 0}
    open_one, close = Session.open_engine, OnnxRuntimeEngine.close

    def watch(self, *args):
        engine = open_one(self, *args)
        state["open"].add(engine)
        state["most"] = max(state["most"], len(state["open"]))
        state["opened"] += 1
        return engine

    def end(self):
        state["open"].discard(self)
        close(self)

    monkeypatch.setattr(Session, "open_engine", watch)
    monkeypatch.setattr(OnnxRuntimeEngine, "close", end)
    return state


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_engines_are_open_than_may_be(bundle, expected, watched, most):
    with Session(bundle, backend="onnxruntime") as session:
        with Batcher(session, max_adapters=most, max_wait=0.01) as batcher:
            futures = [(choice, batcher.submit(**ask(), adapter=choice)) for choice in (*CHOICES, *CHOICES)]
            for choice, future in futures:
                torch.testing.assert_close(future.result().latents, expected[choice])
        assert watched["most"] == most
        assert not watched["open"]
        assert watched["opened"] >= len(CHOICES) - 1


def test_the_least_recently_used_is_closed(bundle, watched):
    with Session(bundle, backend="onnxruntime") as session, Batcher(session, max_adapters=2) as batcher:
        for choice in ("ink", "style", "ink", "ink:0.1", "ink", "ink:0.5"):  # the last one is ink
            batcher.submit(**ask(), adapter=choice).result()
        assert watched["opened"] == 3
        batcher.submit(**ask(), adapter="style").result()
        assert watched["opened"] == 4


def test_threads_of_more_adapters_than_engines_get_their_own(bundle, expected, watched):
    """Sessions of pipelines wait for nobody: an engine that was closed is opened again at its next call."""
    with Session(bundle, backend="onnxruntime") as session, Batcher(session, max_adapters=1) as batcher:
        made = {}

        def run(choice):
            made[choice] = batcher.open_session(choice).generate(**ask()).latents

        threads = [threading.Thread(target=run, args=(choice,)) for choice in CHOICES[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert made.keys() == {*CHOICES[1:]}
        for choice, latents in made.items():
            torch.testing.assert_close(latents, expected[choice])
    assert watched["most"] == 1


def test_an_adapter_that_is_not_there_is_refused_at_once(bundle):
    with Session(bundle, backend="onnxruntime") as session, Batcher(session) as batcher:
        with pytest.raises(ZeusError, match="adapter: got 'oil' for a bundle with ink, style"):
            batcher.submit(**ask(), adapter="oil")
        with pytest.raises(ZeusError, match="max_adapters: got 0"):
            Batcher(session, max_adapters=0)
        assert not wait([batcher.submit(**ask(), adapter="ink")], 60).not_done
