"""Pictures in bulk on Ray: a cluster of two nodes on this machine, one of whose workers is killed."""

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from batch_requests import ask, write
from click.testing import CliRunner
from small_bundle import write_bundle

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.generating import generate_batch
from zeus_trt.ray_cluster import RayOptions, connect
from zeus_trt.serving.answers import describe_result
from zeus_trt.serving.image_request import read_request
from zeus_trt.serving_model import ServedModel


def test_without_ray_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ZeusError, match=r"pip install 'zeus-trt\[ray\]'"), connect(RayOptions()):
        pass


@pytest.mark.parametrize("words", [["--ray", "digits"], ["--replicas", "2"], ["--ray=auto", "--replicas", "3:1"]])
def test_options_of_ray_are_read_before_anything_runs(words, tmp_path):
    done = CliRunner().invoke(main, ["generate-batch", "m", "r.jsonl", "-o", str(tmp_path / "out"), *words])
    assert done.exit_code in (1, 2)
    assert "--r" in done.stderr


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray", reason="ray, of the extra [ray], is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    try:
        made.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield made
    finally:
        made.shutdown()


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(cluster, tmp_path):
    import psutil

    from zeus_trt.generating_on_ray import run_on_ray

    model = ServedModel(str(write_bundle(tmp_path / "small")), max_rows=1)
    file = write(tmp_path / "asked.jsonl", *ask(20, steps=400))
    killed: list[int] = []

    def kill():
        workers = [one for one in psutil.Process().children(recursive=True) if "MapWorker" in one.name()]
        workers = workers or [
            one for one in psutil.Process().children(recursive=True) if "MapWorker" in " ".join(one.cmdline())
        ]
        if not killed:
            assert len(workers) == 2
            os.kill(workers[-1].pid, signal.SIGKILL)
            killed.append(workers[-1].pid)

    on_two = RayOptions(cluster.address, (2, 2))
    result = generate_batch(model, file, tmp_path / "ray", run=run_on_ray(on_two), on_picture=kill)
    assert len(result.made) == 20
    assert not result.failed
    assert killed
    generate_batch(model, file, tmp_path / "here")
    for k in range(20):
        assert (tmp_path / "ray" / f"p{k}.png").read_bytes() == (tmp_path / "here" / f"p{k}.png").read_bytes()
    wrong = generate_batch(
        model, write(file, {"id": "bad", "steps": 4, "plan": "FF"}), tmp_path / "ray", run=run_on_ray(on_two)
    )
    assert "plan: got" in wrong.failed["bad"]


@pytest.mark.slow
def test_a_request_that_ends_every_worker_fails_alone(cluster, tmp_path, monkeypatch):
    from zeus_trt import generating_on_ray

    deaths = tmp_path / "deaths"

    class Fragile(generating_on_ray.Worker):
        def __call__(self, rows):
            if "killer" in rows["id"].to_pylist():
                with deaths.open("a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(rows)

    monkeypatch.setattr(generating_on_ray, "Worker", Fragile)
    asked = ask(9)
    asked[4]["id"] = "killer"
    model = ServedModel(str(write_bundle(tmp_path / "small")), max_rows=1)
    file, run = (
        write(tmp_path / "asked.jsonl", *asked),
        generating_on_ray.run_on_ray(RayOptions(cluster.address, (2, 2))),
    )
    result = generate_batch(model, file, tmp_path / "out", run=run)
    assert sorted(result.made) == sorted(one["id"] for one in asked if one["id"] != "killer")
    assert list(result.failed) == ["killer"]
    assert "got no answer of 4 workers" in result.failed["killer"]
    assert deaths.read_text() == "xxxx"


@pytest.mark.slow
def test_two_replicas_answer_as_one_process_and_end(cluster, digits_bundle, monkeypatch):
    from ray import serve

    from zeus_trt.serving.limits import Limits
    from zeus_trt.serving.server import Address
    from zeus_trt.serving_model import ServedModel
    from zeus_trt.serving_on_ray import NAME, serve_on_ray

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address(port=free.getsockname()[1])
    body = {"label": 3, "seed": 7, "steps": 4, "ratio": 1}
    served = ServedModel(digits_bundle("unet-flow"), max_rows=2)
    answers, states = [], []

    def ask_it():
        states.append(serve.status().applications[NAME].deployments["Replica"].replica_states)
        answers.append(post(f"http://127.0.0.1:{address.port}/v1/images/generations", body))

    serve_on_ray(served, address, Limits(seconds=60), RayOptions(cluster.address, (2, 2), cpus=0.5), wait=ask_it)
    assert states == [{"RUNNING": 2}]
    service = served.open_service()
    try:
        made = service.submit(read_request(json.dumps(body).encode(), Limits()), 60).result(60)
    finally:
        service.close()
    expected = describe_result(read_request(json.dumps(body).encode(), Limits()), made)
    assert answers[0]["data"] == expected["data"]
    with pytest.raises(urllib.error.URLError, match=r"refused|404"):
        post(f"http://127.0.0.1:{address.port}/v1/images/generations", body)


@pytest.mark.slow
def test_streams_and_load_on_a_cluster_and_its_end(cluster, digits_bundle):
    """Events come as they are made; replicas are added under load; the last request ends before its replica does."""
    from ray import serve

    from zeus_trt.serving.limits import Limits
    from zeus_trt.serving.server import Address
    from zeus_trt.serving_on_ray import NAME, serve_on_ray

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address(port=free.getsockname()[1])
    url = f"http://127.0.0.1:{address.port}"
    pictures = f"{url}/v1/images/generations"
    long = {"label": 3, "seed": 7, "steps": 60, "ratio": 0, "n": 2}
    pool, running = ThreadPoolExecutor(12), []

    def count_replicas():
        states = serve.status().applications[NAME].deployments["Replica"].replica_states
        return {str(getattr(state, "value", state)): count for state, count in states.items()}.get("RUNNING", 0)

    def load(until):
        while time.monotonic() < until and count_replicas() < 2:
            post(pictures, {"label": 3, "steps": 10, "ratio": 0})

    def use_it():
        assert count_replicas() == 1
        with urllib.request.urlopen(ask_for(pictures, {**long, "stream": True}), timeout=60) as stream:
            first = [stream.readline() for _ in range(2)]
            with pytest.raises(urllib.error.HTTPError) as full:
                post(pictures, {**long, "stream": True})
            rest = stream.read().decode()
        assert first[0] == b"event: image_generation.partial_image\n"
        assert rest.count("event: image_generation.partial_image") == 2 * 60 - 1
        assert rest.count("event: image_generation.completed") == 2
        assert (full.value.code, json.load(full.value)["error"]["code"]) == (429, "too_many_streams")
        until = time.monotonic() + 240
        for one in [pool.submit(load, until) for _ in range(10)]:
            one.result()
        assert count_replicas() == 2
        running.extend(pool.submit(post, pictures, long) for _ in range(4))
        time.sleep(1)

    served = ServedModel(digits_bundle("unet-flow"), max_rows=1)
    cluster_options = RayOptions(cluster.address, (1, 2), cpus=0.5)
    serve_on_ray(served, address, Limits(seconds=120, streams=1), cluster_options, wait=use_it)
    assert [len(one.result()["data"]) for one in running] == [2] * 4
    pool.shutdown()
    with pytest.raises(urllib.error.URLError, match=r"refused|404"):
        post(pictures, long)


def ask_for(url, body):
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def post(url, body):
    with urllib.request.urlopen(ask_for(url, body), timeout=120) as answer:
        return json.load(answer)
