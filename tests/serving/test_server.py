"""The process of `zeus-trt serve`: signals, addresses, its page in a browser."""

import signal
import socket
import subprocess
import sys
import threading
import time

import httpx2
import pytest
from browser import open_page
from click.testing import CliRunner
from http_service import POST, make_service, run_in_thread

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.serving.limits import Limits
from zeus_trt.serving.server import Address, run_server


def start(bundle, *options):
    words = [
        sys.executable,
        "-m",
        "zeus_trt",
        "serve",
        str(bundle),
        "--port",
        "0",
        "--backend",
        "onnxruntime",
        *options,
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def wait_until(is_true):
    for _ in range(600):
        if is_true():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


@pytest.mark.extra
def test_sigterm_ends_it_after_its_requests(digits_bundle):
    """Also: SIGHUP opens the bundle anew."""
    process, url = start(digits_bundle("unet-flow"))
    answers = []
    asked = {"label": 7, "steps": 40, "ratio": 0, "n": 4}
    running = threading.Thread(target=lambda: answers.append(httpx2.post(url + POST, json=asked, timeout=120)))
    try:
        assert httpx2.post(url + POST, json={"label": 1, "steps": 2}, timeout=60).status_code == 200
        process.send_signal(signal.SIGHUP)
        running.start()
        wait_until(lambda: "zeus_trt_active 1.0" in httpx2.get(url + "/metrics").text)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx2.get(url + "/readyz").status_code == 503)
        assert httpx2.post(url + POST, json={}).json()["error"]["code"] == "closing"
        running.join(120)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert len(answers[0].json()["data"]) == 4
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org", "::", "10.0.0.1"])
def test_other_machines_need_a_key(host):
    with pytest.raises(ZeusError, match="expected a key"):
        Address(host)
    assert not Address(host, api_key="k" * 16).is_local
    Address(host, is_public=True)
    with pytest.raises(ZeusError, match="16 characters"):
        Address(host, api_key="short")
    assert Address("127.0.0.1").is_local
    assert Address("::1").is_local


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("zeus_trt.serving_model.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["serve", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'zeus-trt[serve]'" in done.output


def test_only_bundles_are_served(tmp_path):
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "expected a bundle" in done.output


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ZeusError, match="expected a free one"):
        run_server(make_service(), Address(port=taken.getsockname()[1]), Limits())


def test_a_client_that_leaves_cancels_its_request():
    gate_opened = threading.Event()

    def wait(sample, **inputs):
        assert gate_opened.wait(60)
        return sample

    service = make_service(wait)
    with run_in_thread(service) as port:
        url = f"http://127.0.0.1:{port}{POST}"
        for body in ({"steps": 9}, {"steps": 9, "stream": True}):
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(url, json=body, timeout=0.2)
        wait_until(lambda: service.running == 0)
        assert service.counters.cancelled == 2
        gate_opened.set()
    service.close()


def test_the_page_makes_a_picture():
    service = make_service()
    with open_page(service) as page:
        page.select_option("#label", "7")
        page.fill("#n", "2")
        page.focus("#go")
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-done]")
        plan = page.inner_text("#strip").replace("\n", "")
        assert len(plan) == 30
        assert f"{plan.count('F')} of 30" in page.inner_text("#facts")
        sources = [image.get_attribute("src") for image in page.query_selector_all("#pictures img")]
        assert len(sources) == 2
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.fill("#n", "8")
        page.evaluate("document.getElementById('n').max = 99; document.getElementById('n').value = 9")
        page.click("#go")
        page.wait_for_selector("#error:not(:empty)")
        assert "expected a whole number from 1 to 8" in page.inner_text("#error")
    service.close()
