"""Pipelines in threads share one engine."""

import threading

import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.runtime import EnginePair, OnnxRuntimeEngine, Session, accelerate
from zeus_trt.serving import Batcher

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILY = FAMILIES["sd15"]


class Counted:
    """An engine that remembers the rows of its calls."""

    def __init__(self, engine):
        self.engine, self.info, self.backend, self.rows = engine, engine.info, engine.backend, []

    def __call__(self, **inputs):
        self.rows.append(len(next(iter(inputs.values()))))
        return self.engine(**inputs)


def generate(pipeline, seed, steps):
    embeds = {"prompt_embeds": torch.ones(1, 7, 16) * seed, "negative_prompt_embeds": torch.zeros(1, 7, 16)}
    return pipeline(
        **embeds, num_inference_steps=steps, output_type="latent", generator=torch.Generator().manual_seed(seed)
    )[0]


def test_calls_of_concurrent_pipelines_meet(family_bundle):
    bundle = family_bundle("sd15")
    engine = Counted(OnnxRuntimeEngine(bundle.graph(), num_threads=1))
    session, pipeline, asked = Session(bundle, engine=engine), FAMILY.make(), [(1, 6), (2, 8), (3, 10), (4, 8)]

    def make(shared, seed, steps):
        with accelerate(pipeline, seed - 1, engine=shared, check=False) as fast:
            return generate(fast, seed, steps), fast.report

    expected = [make(session, *one) for one in asked]
    alone, engine.rows = engine.rows, []
    made: list = [None] * len(asked)
    with Batcher(session, max_rows=8, max_wait=1.0) as batcher:

        def run(k):
            made[k] = make(batcher.session, *asked[k])

        threads = [threading.Thread(target=run, args=(k,)) for k in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sum(engine.rows) == sum(alone)
    assert len(engine.rows) < len(alone)
    assert max(engine.rows) > 2
    for (latents, report), (serial, serial_report) in zip(made, expected, strict=True):
        assert (latents - serial).norm() < 1e-5 * serial.norm()
        assert (report.plan, report.nfe, report.backend) == (serial_report.plan, serial_report.nfe, "onnxruntime")


def test_pipelines_meet_requests_and_use_both_engines(family_bundle):
    """The quantized engine is a double: the bundle's own, which counts its calls."""
    bundle = family_bundle("sd15")
    own = OnnxRuntimeEngine(bundle.graph(), num_threads=1)
    double = Counted(own)
    session = Session(bundle, engine=EnginePair(own, double))
    text = {"encoder_hidden_states": torch.ones(1, 7, 16)}
    shape = (1, *generate(FAMILY.make(), 1, 1).shape[1:])
    settings = {"num_steps": 6, "plan": "FQXRQF", "noise": torch.randn(shape)}
    with Batcher(session, max_rows=4) as batcher:
        future = batcher.submit(text, **settings)
        with accelerate(FAMILY.make(), plan="FQXRQF", engine=batcher.session) as fast:
            latents = generate(fast, 1, 6)
        result = future.result(60)
    assert sum(double.rows) == 2 * (2 + 1)
    assert fast.report.plan == result.report.plan == "FQXRQF"
    with accelerate(FAMILY.make(), plan="FQXRQF", engine=session) as fast:
        serial = generate(fast, 1, 6)
    assert (latents - serial).norm() < 1e-5 * serial.norm()
    serial = session.generate(text, **settings).latents
    assert (result.latents - serial).norm() < 1e-5 * serial.norm()


def test_digits_equal_their_serial_runs(flow_session):
    """A batched product sums in another order: the last bits differ, unless every call has one size."""
    asked = [
        (
            {"class_labels": torch.arange(1 + k % 2)},
            {"num_steps": 4 + k, "seed": k, "ratio": k, "guidance_scale": 1.0 + k},
        )
        for k in range(3)
    ]
    serial = [flow_session.generate(labels, **settings).latents for labels, settings in asked]
    with Batcher(flow_session, max_rows=16) as batcher:
        futures = [batcher.submit(labels, **settings) for labels, settings in asked]
        made = [future.result(60).latents for future in futures]
    for latents, expected in zip(made, serial, strict=True):
        error = (latents - expected).norm() / expected.norm()
        print("relative error", float(error))
        assert error < 1e-5
    with Batcher(flow_session, max_rows=4, batch_sizes=[4]) as batcher:
        alone = [batcher.submit(labels, **settings).result(60).latents for labels, settings in asked]
        futures = [batcher.submit(labels, **settings) for labels, settings in asked]
        for future, expected in zip(futures, alone, strict=True):
            assert torch.equal(future.result(60).latents, expected)
