"""AOTInductor packages, compiled and run for real on the CPU."""

import shutil

import pytest
import torch
from bare_inputs import example_inputs
from engine_samples import write_engine

from zeus_trt.errors import ZeusError
from zeus_trt.export import load_pipeline
from zeus_trt.export.aot_inductor import trace_program
from zeus_trt.export.build import build_engine, find_reasons, plan_engine
from zeus_trt.export.profile import SizeRange
from zeus_trt.export.tensorrt import TensorRTOptions
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.engine_trust import trust_engines
from zeus_trt.runtime.engines.aot_inductor import AotEngine
from zeus_trt.runtime.engines.hardware import find_cpu


class Flat(torch.nn.Module):
    """A denoiser as a function of positional tensors."""

    def __init__(self, denoiser):
        super().__init__()
        self.denoiser = denoiser

    def forward(self, sample, timestep, class_labels):
        return self.denoiser(sample, timestep, class_labels).sample


@pytest.fixture(scope="module")
def tiny(tiny_model, export_tiny):
    """The tiny UNet, its bundle, and how to trace it."""
    bundle = export_tiny()
    denoiser = load_pipeline(tiny_model).denoiser
    inputs = example_inputs(denoiser, 2)

    def trace():
        return trace_program(Flat(denoiser).eval(), inputs, bundle.manifest.inputs)

    return denoiser, bundle, trace


def list_files(bundle):
    return sorted(bundle.path.rglob("*"))


@pytest.mark.slow
def test_agrees_with_eager_at_every_batch(tiny, tmp_path):
    denoiser, bundle, trace = tiny
    said = []
    record = build_engine(bundle, "aot-inductor", ranges={"batch": SizeRange(1, 1, 2)}, trace=trace, say=said.append)
    assert said == ["builds aot-inductor: the bundle has none"]
    assert record.spec.target.sms == (find_cpu().sm,)
    assert record.file == "denoiser.pt2"
    engine = AotEngine.open(Bundle.open(bundle.path))
    for batch in (1, 2, 3, 4):
        inputs = example_inputs(denoiser, batch, seed=batch)
        with torch.no_grad():
            eager = denoiser(**inputs).sample
        assert (engine(**inputs) - eager).abs().max() < 1e-4 * eager.abs().max()
        cast = {name: value.double() for name, value in inputs.items()}
        assert torch.equal(engine(**cast), engine(**inputs))
    one_time = engine(**inputs | {"timestep": torch.tensor(500)})
    assert torch.equal(one_time, engine(**inputs | {"timestep": torch.full((4,), 500.0)}))
    with pytest.raises(ZeusError, match=r"guidance doubles the batch: 2 x 3 = 6\); expected 1\.\.4"):
        engine(**example_inputs(denoiser, 6))
    with pytest.raises(ZeusError, match="Pass each of them by name"):
        engine(sample=inputs["sample"])
    assert build_engine(bundle, "aot-inductor", ranges={"batch": SizeRange(1, 1, 2)}, say=said.append) == record
    assert said[-1].startswith("reuses aot-inductor: ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEUS_TRT_DATA_HOME", str(tmp_path))  # as on another machine
        with pytest.raises(ZeusError, match="not built on this machine"):
            AotEngine.open(bundle)
        assert torch.equal(AotEngine.open(bundle, trust=True)(**inputs), engine(**inputs))
    (bundle.path / "engines" / record.key / record.file).write_bytes(b"no package")
    with pytest.raises(ZeusError, match="was changed since it was built"):
        AotEngine.open(bundle)


def test_refused_before_anything_is_compiled(tiny):
    denoiser, bundle, trace = tiny
    before = list_files(bundle)
    with pytest.raises(ZeusError, match="got a bundle alone; expected the model as well"):
        build_engine(bundle, "aot-inductor")
    with pytest.raises(ZeusError, match="expected none, which are TensorRT's"):
        build_engine(bundle, "aot-inductor", options=TensorRTOptions(tf32=True), trace=trace)

    def trace_half():
        inputs = {name: v.half() if v.is_floating_point() else v for name, v in example_inputs(denoiser, 2).items()}
        return trace_program(torch.nn.Conv2d(1, 1, 1).half(), {"sample": inputs["sample"]}, bundle.manifest.inputs[:1])

    with pytest.raises(ZeusError, match="got a model in fp16 for a graph in fp32"):
        build_engine(bundle, "aot-inductor", trace=trace_half)
    assert list_files(bundle) == before


def test_an_engine_is_reused_only_if_it_was_built_here(tiny, tmp_path):
    bundle = Bundle.open(shutil.copytree(tiny[1].path, tmp_path / "bundle"))
    shutil.rmtree(bundle.path / "engines", ignore_errors=True)
    spec = plan_engine(bundle, "aot-inductor")
    file = write_engine(bundle.path, spec, signed=False)
    assert find_reasons(bundle, spec) == ("not built on this machine",)
    with trust_engines():
        assert find_reasons(bundle, spec) == ()
    (file.parent / "engine.json").write_text("{")
    assert "engine.json: got text that is no strict JSON" in find_reasons(bundle, spec)[0]
    shutil.rmtree(file.parent)
    file = write_engine(bundle.path, spec)
    said = []
    assert build_engine(bundle, "aot-inductor", say=said.append).file == file.name
    assert said == [f"reuses aot-inductor: {file.parent}"]
    file.write_bytes(b"hostil")
    assert find_reasons(bundle, spec) == ("its file denoiser.engine was changed since it was built",)
    file.parent.rename(file.parent.with_name("elsewhere"))
    assert find_reasons(bundle, spec) == ("the bundle has none",)


def test_an_axis_that_the_model_fixes_is_named(tiny):
    _, bundle, _ = tiny

    class Fixed(torch.nn.Module):
        def forward(self, sample, timestep, class_labels):
            return sample + timestep.reshape(2, 1, 1, 1) + class_labels.reshape(2, 1, 1, 1)

    inputs = {"sample": torch.zeros(2, 1, 8, 8), "timestep": torch.zeros(2), "class_labels": torch.zeros(2).long()}
    with pytest.raises(ZeusError, match=r"sample: got a model that fixes batch at 2; expected one that takes 1\.\.8"):
        build_engine(bundle, "aot-inductor", trace=lambda: trace_program(Fixed(), inputs, bundle.manifest.inputs))


def test_a_compiler_that_fails_leaves_nothing(tiny, monkeypatch):
    _, bundle, trace = tiny
    before = list_files(bundle)

    def fail(*args, **kwargs):
        raise RuntimeError("g++: not found")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(ZeusError, match=r"does not compile \(g\+\+: not found\)"):
        build_engine(bundle, "aot-inductor", trace=trace)
    assert list_files(bundle) == before


def test_a_package_that_does_not_load(tmp_path, tiny):
    (tmp_path / "denoiser.pt2").write_bytes(b"no package")
    with pytest.raises(ZeusError, match=r"got denoiser\.pt2, which does not load"):
        AotEngine(tmp_path / "denoiser.pt2", tiny[1].manifest.inputs, {})
