"""Adapters of a bundle in engines that are built of it."""

import pytest
import torch
from lora_files import make, save
from pipelines import FAMILIES

from zeus_trt.export import add_adapter
from zeus_trt.export.build import build_engine
from zeus_trt.export.capture import capture
from zeus_trt.export.flat import trace_flat
from zeus_trt.runtime import Session

pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_a_package_of_aot_inductor_takes_an_adapter_and_gives_it_back(family_bundle, tmp_path):
    family = FAMILIES["flux"]
    bundle = add_adapter(family_bundle("flux"), save(make("flux")[0], tmp_path), "ink", scale=0.5)
    captured = capture(family.make(), family.settings)
    build_engine(bundle, "aot-inductor", trace=lambda: trace_flat(captured))
    inputs = {spec.name: value for spec, value in zip(captured.inputs, captured.examples, strict=True)}

    def ask(backend, adapter):
        with Session(bundle.with_adapter(adapter), backend=backend) as session:
            assert bool(session.engine.adapter) == bool(adapter)
            return session.engine(**inputs)

    first, plain, again = (ask("aot-inductor", name) for name in ("ink", None, "ink"))
    expected, bare = (ask("onnxruntime", name) for name in ("ink", None))
    assert torch.equal(first, again)
    assert (first - expected).norm() < 1e-4 * expected.norm()
    assert (plain - bare).norm() < 1e-4 * bare.norm()
    assert (first - plain).norm() > 1e-3 * plain.norm()
