"""A server under hostile and under much use: no traceback, no place and no memory is lost."""

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest
from http_service import POST, make_service, run_in_thread

from zeus_trt.serving.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

VALUES = (
    0, -1, 1, 2, 9, 10**9, 10**30, -(10**30), 0.5, 1e308, -0.0, True, None, "", "x" * 5000, "7", "\x00", "\ud7ff",
    "../..", [], [1], {}, {"a": {"b": []}}, "FFXRF", "fast", "a.json", "8x8", "0x0", "99999x99999", "url", "auto",
)  # fmt: skip
NAMES = (
    "prompt", "label", "n", "size", "response_format", "seed", "steps", "ratio", "plan", "min_psnr", "deadline_ms",
    "guidance_scale", "negative_prompt", "stream", "model", "user", "colour", "__class__",
    "inputs", "window", "predictor", "mode", "partial_images",
)  # fmt: skip


def write_body(dice):
    """Fuzzed JSON: wrong fields and types, cut off, doubled, nested, no JSON."""
    import json

    body = json.dumps({dice.choice(NAMES): dice.choice(VALUES) for _ in range(dice.randrange(6))}).encode()
    kind = dice.randrange(8)
    if kind == 0:
        return body[: dice.randrange(len(body))]
    if kind == 1:
        return bytes(dice.randrange(256) for _ in range(dice.randrange(200)))
    if kind == 2:
        return b"[" * dice.randrange(1, 5000)
    if kind == 3:
        return b'{"n":1,"n":' + str(dice.choice(VALUES)).encode("utf-8", "replace") + b"}"
    return body


def attack(port, number):
    """One hostile request; the status of its answer, or 0 where the client left."""
    dice = random.Random(number)
    url, kind = f"http://127.0.0.1:{port}{POST}", dice.randrange(10)
    if kind < 6:
        headers = {"Content-Type": dice.choice(("application/json", "application/json", "text/plain", "x" * 500))}
        answer = httpx2.post(url, content=write_body(dice), headers=headers, timeout=60)
    elif kind == 6:  # too large, in chunks
        answer = httpx2.post(
            url, content=iter([b" " * 4096] * 40), headers={"Content-Type": "application/json"}, timeout=60
        )
    elif kind == 7:  # leaves in the middle of a stream
        body = {"steps": 20, "stream": True}
        with httpx2.stream("POST", url, json=body, timeout=60) as answer:
            next(answer.iter_bytes(), None)
        return 0
    else:
        return attack_raw(port, dice)
    assert "Traceback" not in answer.text
    if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
        assert "message" in answer.json()["error"]
    return answer.status_code


def attack_raw(port, dice):
    """Bytes that are no HTTP, a request without its end, a client that leaves at once or is slow."""
    head = f"POST {POST} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    sent = dice.choice(
        (
            b"\x16\x03\x01" + bytes(50), b"GET / HTTP/9\r\n\r\n", head + b"Content-Length: 99999999\r\n\r\n{",
            head + b"Content-Length: 50\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            head + b"Content-Length: 12\r\n\r\n" + b'{"steps":20}', head + b"X: " + b"y" * 100000, head,
            head + b"Content-Length: -5\r\n\r\n",
        )
    )  # fmt: skip
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(dice.choice((0.01, 0.01, 2)))
        try:
            client.sendall(sent)
            received = client.recv(1 << 16)
        except OSError:
            return 0
    assert b"Traceback" not in received
    parts = received.split(b" ", 2)
    return int(parts[1]) if len(parts) == 3 else 0


def measure():
    return psutil.Process().memory_info().rss / 2**20


def check_empty(service):
    """All places are free."""
    service.drain()
    counters = service.counters
    assert (counters.queued, counters.active, counters.waiting, service.running) == (0, 0, 0, 0)
    ended = counters.finished + counters.failed + counters.cancelled
    assert ended == counters.submitted, counters


def test_a_thousand_hostile_requests():
    service = make_service(max_queue=8, max_active=4)
    limits = Limits(steps=20, body=1 << 14, body_seconds=1, seconds=5, streams=4)
    with run_in_thread(service, limits, limit_concurrency=64) as port:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda number: attack(port, number), range(100)))
            before = measure()
            statuses = list(pool.map(lambda number: attack(port, number), range(1000)))
        counts = {status: statuses.count(status) for status in sorted(set(statuses))}
        print("answers by status:", counts, f"memory: {before:.0f} -> {measure():.0f} MiB")
        assert 500 not in counts
        assert counts[200] > 10
        assert counts[400] > 100
        assert httpx2.post(f"http://127.0.0.1:{port}{POST}", json={"steps": 2}).status_code == 200
        check_empty(service)
        threads = threading.active_count()
    service.close()
    assert threads < 80
    assert measure() - before < 64


def test_a_soak_of_two_thousand_requests():
    service = make_service(max_queue=64)
    with run_in_thread(service) as port, httpx2.Client(timeout=60) as client:
        url = f"http://127.0.0.1:{port}{POST}"

        def ask(number):
            dice = random.Random(number)
            body = {"steps": dice.randint(2, 10), "ratio": dice.randrange(4), "n": dice.randint(1, 3), "seed": number}
            answer = client.post(url, json={**body, "stream": number % 5 == 0})
            assert answer.status_code == 200, answer.text
            return len(answer.content)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(400)))
            before = measure()
            assert all(pool.map(ask, range(2000)))
        print(f"memory: {before:.0f} -> {measure():.0f} MiB; {service.counters}")
        assert service.counters.finished == 2400
        check_empty(service)
    service.close()
    assert measure() - before < 32
