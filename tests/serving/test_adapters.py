"""Requests of several adapters at one batcher: rows of other adapters never share a call."""

import pytest
import torch
from lora_files import make, save

from zeus_trt.errors import ZeusError
from zeus_trt.export import add_adapter
from zeus_trt.runtime import Session, accelerate
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.serving import Batcher

pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
ADAPTERS = (None, "ink", "style")


@pytest.fixture(scope="module")
def bundle(family_bundle, tmp_path_factory):
    stored = family_bundle("sd15")
    for name in ADAPTERS[1:]:
        stored = add_adapter(stored, save(make("sd15", name)[0], tmp_path_factory.mktemp(name), name), name, scale=0.5)
    return stored.with_adapter(None)


def ask(seed):
    noise = torch.Generator().manual_seed(seed)
    latents, embeds = torch.randn(1, 4, 8, 8, generator=noise), torch.randn(1, 7, 16, generator=noise)
    return {"conditioning": {"encoder_hidden_states": embeds}, "noise": latents, "num_steps": 4, "ratio": 0}


def test_each_request_equals_a_session_with_its_adapter(bundle, monkeypatch):
    sizes = []
    compute = OnnxRuntimeEngine._compute

    def watch(self, cast):
        sizes.append((self.adapter, len(cast["sample"])))
        return compute(self, cast)

    expected = {}
    for adapter in ADAPTERS:
        with Session(bundle, backend="onnxruntime", adapter=adapter) as session:
            expected |= {(adapter, seed): session.generate(**ask(seed)).latents for seed in range(2)}
    monkeypatch.setattr(OnnxRuntimeEngine, "_compute", watch)
    with Session(bundle, backend="onnxruntime") as session, Batcher(session, max_rows=8, max_wait=0.5) as batcher:
        futures = {key: batcher.submit(**ask(key[1]), adapter=key[0]) for key in expected}
        for key, future in futures.items():
            result = future.result()
            torch.testing.assert_close(result.latents, expected[key], rtol=1e-5, atol=1e-5)
            assert result.report.mean_rows <= 2
        with pytest.raises(ZeusError, match="adapter: got 'other' for a bundle with ink, style"):
            batcher.submit(**ask(0), adapter="other")
    assert len({adapter for adapter, _ in sizes}) == len(ADAPTERS)
    assert {size for _, size in sizes} == {1, 2} or {size for _, size in sizes} == {2}
    difference = (expected["ink", 0] - expected[None, 0]).norm()
    assert difference > 1e-3 * expected[None, 0].norm()


def test_a_pipeline_calls_the_engine_of_its_adapter(bundle):
    pipeline, _ = make("sd15")
    embeds = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))

    def run(one):
        return one(
            prompt_embeds=embeds[:1], negative_prompt_embeds=embeds[1:], height=64, width=64, num_inference_steps=3,
            output_type="latent", generator=torch.Generator().manual_seed(0),
        ).images  # fmt: skip

    with accelerate(pipeline, 0) as eager:
        expected = run(eager)
    with Session(bundle, backend="onnxruntime") as session, Batcher(session) as batcher:
        with accelerate(pipeline, 0, engine=batcher.open_session("ink")) as fast:
            assert (run(fast) - expected).norm() < 1e-4 * expected.norm()
        with accelerate(pipeline, 0, engine=batcher.session) as fast, pytest.raises(ZeusError, match="expected no ada"):
            run(fast)
        with pytest.raises(ZeusError, match="engine: got one with the adapter none"):
            Session(bundle, adapter="ink", engine=batcher.engine)
