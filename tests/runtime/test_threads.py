"""Many trajectories at once on one session."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from toy_bundle import DIGITS, LABELS, SAMPLE, make_session

from zeus_trt.runtime import Guidance, draw_noise

THREADS, EACH = 8, 8
PREDICTORS = ("zeus", "reuse", "lagrange-3@sigma", "linear-grid", "zeus-paper", "extrapolate", "lagrange-2", "zeus")
GUIDANCE = (
    Guidance(), Guidance(2.0), Guidance(3.0, sequential=True), Guidance(4.0, interval=(0.2, 0.8), rescale=0.5),
)  # fmt: skip


def list_requests():
    """64 requests, no two alike."""
    for thread, index in itertools.product(range(THREADS), range(EACH)):
        number = thread * EACH + index
        yield {
            "num_steps": 8 + thread, "ratio": index % 5, "predictor": PREDICTORS[(thread + index) % 8], "seed": number,
            "guidance": GUIDANCE[number % 4], "mode": "step" if number % 3 == 0 else "auto",
            "drift_threshold": 0.05 if number % 6 == 0 else None,
        }  # fmt: skip


def run(session, request, size=8):
    settings = {name: value for name, value in request.items() if name != "ratio"}
    plan = session.plan(request["num_steps"], request["ratio"])
    noise = draw_noise((2, 4, size, size), request["seed"])
    labels = {"class_labels": torch.tensor([request["seed"] % 10, 3])}
    return session.generate(labels, plan=plan, noise=noise, **settings)


def run_all(session, requests):
    """Eight at a time; a deadlock ends in a TimeoutError."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda request: run(session, request), requests, timeout=120))


def test_results_equal_the_serial_ones_to_the_bit():
    requests = list(list_requests())
    serial = [run(make_session(LABELS, labels=DIGITS), request) for request in requests]
    together = run_all(make_session(LABELS, labels=DIGITS), requests)
    for request, one, other in zip(requests, serial, together, strict=True):
        assert torch.equal(one.latents, other.latents), request
        assert (one.report.plan, one.report.nfe) == (other.report.plan, other.report.nfe)


def test_an_engine_gives_the_same_to_all_threads(open_session):
    session = open_session("unet-flow")
    requests = [{"num_steps": 4 + seed % 3, "ratio": seed % 3, "seed": seed} for seed in range(8)]

    def generate(request):
        return session.generate(
            {"class_labels": torch.tensor([request["seed"]])}, num_steps=request["num_steps"], seed=request["seed"],
            plan=session.plan(request["num_steps"], request["ratio"]),
        ).latents  # fmt: skip

    serial = [generate(request) for request in requests]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(generate, requests, timeout=120))
    assert all(torch.equal(one, other) for one, other in zip(serial, together, strict=True))


def test_nothing_stays_behind():
    """What a session holds after many different requests does not grow with them."""
    session = make_session(LABELS, labels=DIGITS, latents=SAMPLE)
    for num_steps in range(4, 80):
        session.solver.program(num_steps)
    assert session.solver._remember.cache_info().currsize == 64


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
