"""The sampler in a real Triton server, on its Python backend: equality, and calls that meet in the batcher."""

import numpy as np
import pytest
import torch
from triton_server import ask, count, find_reason, serve

from zeus_trt.export.triton import package_triton
from zeus_trt.runtime import Session

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(find_reason()), reason=find_reason())]
LETTERS = "FFFFXRFXRFXRFXFXFFFF"
PLANS = ({"ratio": 0}, {"ratio": 2}, {"ratio": 4}, {"plan": LETTERS}, {"plan": "FFQQXRFXRQXRFXQXFFFF"})
KINDS = {"ratio": np.int32, "every": np.int32, "seed": np.int64, "plan": object, "num_steps": np.int32}


def fill(**settings):
    """The tensors of a request for two labels."""
    arrays = {name: np.array([value], KINDS.get(name, np.float64)) for name, value in settings.items()}
    return {"num_steps": np.array([20], np.int32), "class_labels": np.array([1, 3]), **arrays}


@pytest.fixture(scope="module")
def client(quantized_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    # The delay is long, so that calls which could meet do so on a busy machine too.
    package_triton(quantized_tiny, folder / "models", denoiser_backend="python", queue_delay=20_000)
    with serve(folder / "models", folder) as client:
        yield client


def test_requests_with_other_plans_equal_program_mode_and_share_calls(quantized_tiny, client):
    settings = {
        f"{scale} {plan}": {**plan, "seed": 5 + scale, "guidance_scale": float(scale)}
        for scale in (1, 2)
        for plan in PLANS
    }
    before = count(client)
    found = ask(client, {key: fill(**one) for key, one in settings.items()})
    calls, executions = (after - former for after, former in zip(count(client), before, strict=True))
    nfe = 0
    with Session(quantized_tiny) as session:
        for key, one in settings.items():
            labels = {"class_labels": torch.tensor([1, 3])}
            expected = session.generate(labels, mode="program", num_steps=20, **one)
            (response,) = (response for response in found[key] if response)
            torch.testing.assert_close(torch.tensor(response["latents"]), expected.latents, rtol=1e-5, atol=1e-5)
            nfe += expected.report.nfe
    print(f"{len(settings)} requests: {calls} calls of the denoiser in {executions} executions")
    assert calls == nfe
    assert executions < calls / 2


def test_latents_are_streamed(client):
    found = ask(client, {"one": fill(ratio=4, every=3)})["one"]
    assert [response["progress"].tolist() for response in found if response] == [[3, 9], [6, 9], [9, 9]]


def test_fault_of_a_request_is_its_own(client):
    found = ask(client, {"plan": fill(plan="FFXX"), "steps": fill(num_steps=7), "right": fill(ratio=4)})
    assert len(found["right"]) >= 1
    words = sorted(found["errors"])
    assert len(words) == 2
    assert "num_steps: got 7" in words[0]
    assert "plan: got X as the last step" in words[1]
