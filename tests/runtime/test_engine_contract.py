"""What every engine does, for each that this machine can run: ONNX Runtime, AOTInductor, eager.

TensorRT's runs against a TEST DOUBLE of its module (``tensorrt_double``): nothing of it is a GPU's word.
"""

from functools import cache

import pytest
import torch
from tensorrt_double import MANIFEST

from zeus_trt.errors import ZeusError
from zeus_trt.export.aot_inductor import build_package, trace_program
from zeus_trt.runtime import EagerEngine, Engine, EngineInfo, OnnxRuntimeEngine
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.aot_inductor import AotEngine
from zeus_trt.runtime.engines.tensorrt import TensorRTEngine

SPECS = {
    dtype: (
        TensorSpec("sample", dtype, ("batch", 4, 8, 8), "latents"),
        TensorSpec("timestep", "float32", ("batch",), "timestep"),
    )
    for dtype in ("float32", "float16", "bfloat16")
}
PROFILE = {"sample": ShapeRange((1, 4, 8, 8), (2, 4, 8, 8), (4, 4, 8, 8)), "timestep": ShapeRange((1,), (2,), (4,))}


class Toy(torch.nn.Module):
    """A convolution, and a row's timestep."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, sample, timestep):
        return self.conv(sample) + timestep.to(sample.dtype).reshape(-1, 1, 1, 1) / 1000


def export_toy(path, dtype):
    """The toy as a graph: ONNX Runtime has no half convolution on some CPUs, and no bfloat16 one."""
    from zeus_trt.export.graph import write_graph

    class Sum(torch.nn.Module):
        def forward(self, sample, timestep):
            return (sample.float() * 2 + timestep.reshape(-1, 1, 1, 1) / 1000).to(sample.dtype)

    inputs = {"sample": torch.zeros(2, 4, 8, 8, dtype=getattr(torch, dtype)), "timestep": torch.zeros(2)}
    program = trace_program(Sum().eval(), inputs, SPECS[dtype])
    write_graph(program, list(inputs), [spec.axes for spec in SPECS[dtype]] + [SPECS[dtype][0].axes], path)
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The toy compiled for this CPU."""
    path = tmp_path_factory.mktemp("aot") / "toy.pt2"
    inputs = {"sample": torch.zeros(2, 4, 8, 8), "timestep": torch.zeros(2)}
    build_package(trace_program(Toy().eval(), inputs, SPECS["float32"]), path)
    return path


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The toy's graph in a precision, written once."""
    return cache(lambda dtype: export_toy(tmp_path_factory.mktemp(dtype) / "toy.onnx", dtype))


KINDS = ["onnxruntime", "onnxruntime-fp16", "onnxruntime-bf16", "eager", "eager-bf16", "double"]


@pytest.fixture(params=[*KINDS, pytest.param("aot", marks=pytest.mark.slow)])
def engine(request):
    kind, _, precision = request.param.partition("-")
    dtype = {"": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]
    if kind == "onnxruntime":
        return OnnxRuntimeEngine(request.getfixturevalue("graph")(dtype), num_threads=1)
    if kind == "eager":
        return EagerEngine(Toy().to(getattr(torch, dtype)).eval(), SPECS[dtype])
    if kind == "aot":
        return AotEngine(request.getfixturevalue("package"), SPECS["float32"], PROFILE)
    request.getfixturevalue("double")
    return TensorRTEngine(request.getfixturevalue("engine_file"), MANIFEST, device="cpu")


def make_inputs(batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "sample": torch.randn(batch, 4, 8, 8, generator=generator),
        "timestep": torch.full((batch,), 500.0),
    }


def test_info_says_what_it_is(engine):
    info = engine.info
    assert isinstance(engine, Engine)
    assert isinstance(info, EngineInfo)
    assert engine.backend == info.backend in ("onnxruntime", "eager", "aot-inductor", "tensorrt")
    assert info.precision in ("fp32", "fp16", "bf16")
    assert info.device == torch.device("cpu")
    assert info.bytes > 0
    assert (info.profile is None) == (info.backend in ("onnxruntime", "eager"))
    assert type(engine).__name__ in repr(engine)


def test_inputs_are_cast_both_ways(engine):
    inputs = make_inputs()
    expected = engine(**inputs)
    wide = {"sample": inputs["sample"].double(), "timestep": inputs["timestep"].long()}
    assert torch.equal(engine(**wide), expected)
    assert torch.equal(engine(**{name: wide[name] for name in ("timestep", "sample")}), expected)
    half = {"sample": inputs["sample"].bfloat16(), "timestep": inputs["timestep"].half()}
    exact = {"sample": half["sample"].float(), "timestep": inputs["timestep"]}
    assert torch.equal(engine(**half), engine(**exact))
    assert (
        expected.dtype == {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[engine.info.precision]
    )


@pytest.mark.parametrize("timestep", [torch.tensor(500), torch.tensor([500.0]), torch.tensor([500, 500])])
def test_timesteps_of_any_shape(engine, timestep):
    assert torch.equal(engine(**{**make_inputs(), "timestep": timestep}), engine(**make_inputs()))


def test_inputs_that_are_not_contiguous(engine):
    inputs = make_inputs()
    flipped = inputs["sample"].transpose(2, 3).contiguous().transpose(2, 3)
    assert not flipped.is_contiguous()
    assert torch.equal(engine(**{**inputs, "sample": flipped}), engine(**inputs))


def test_outputs_and_inputs_belong_to_the_caller(engine):
    inputs = make_inputs()
    before = {name: value.clone() for name, value in inputs.items()}
    first = engine(**inputs)
    kept = first.clone()
    engine(**make_inputs(seed=1))
    assert torch.equal(first, kept)
    first.zero_()
    assert torch.equal(engine(**inputs), kept)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)
    assert not first.requires_grad


def test_wrong_inputs_are_named(engine):
    inputs = make_inputs()
    with pytest.raises(ZeusError, match=r"got the inputs \['sample'\]; expected \['sample', 'timestep'\]"):
        engine(sample=inputs["sample"])
    with pytest.raises(ZeusError, match="extra"):
        engine(**inputs, extra=inputs["timestep"])
    with pytest.raises(ZeusError, match=r"(2, 5, 8, 8)|axis 1"):
        engine(**{**inputs, "sample": torch.zeros(2, 5, 8, 8)})


def test_leaving_its_block_closes_it(engine):
    with engine as opened:
        assert opened is engine
        engine(**make_inputs())
    with pytest.raises(ZeusError, match="got a call of a closed engine; expected an open one"):
        engine(**make_inputs())


def test_eager_refuses_what_it_cannot_be():
    with pytest.raises(ZeusError, match="got a module in train mode"):
        EagerEngine(Toy(), SPECS["float32"])
    with pytest.raises(ZeusError, match="got a CUDA graph on cpu"):
        EagerEngine(Toy().eval(), SPECS["float32"], cuda_graph=True)


def test_eager_nests_what_is_not_its_own():
    class Nested(Toy):
        def forward(self, sample, timestep, added=None, return_dict=True):
            assert not return_dict
            return (super().forward(sample, timestep) + added["text"].reshape(-1, 1, 1, 1),)

    module = Nested().eval()
    specs = (*SPECS["float32"], TensorSpec("text", "float32", ("batch",)))
    engine = EagerEngine(
        module, specs, lambda x: {**{k: x[k] for k in ("sample", "timestep")}, "added": {"text": x["text"]}}
    )
    inputs = make_inputs()
    got = engine(**inputs, text=torch.ones(2))
    torch.testing.assert_close(got, EagerEngine(Toy().eval(), SPECS["float32"])(**inputs) + 1)


@pytest.mark.slow
def test_compiled_eager_agrees():
    inputs = make_inputs()
    compiled = EagerEngine(Toy().eval(), SPECS["float32"], compile=True)
    torch.testing.assert_close(compiled(**inputs), EagerEngine(Toy().eval(), SPECS["float32"])(**inputs))


def test_the_caller_may_own_the_output(engine):
    inputs = make_inputs()
    expected, out = engine(**inputs), torch.full((2, 4, 8, 8), torch.nan, dtype=torch.float64)
    assert engine(**inputs, out=out) is out
    assert torch.equal(out, expected.double())
    for wrong in (torch.zeros(1, 4, 8, 8), [0.0]):
        with pytest.raises(ZeusError, match=r"out: got .*; expected a tensor of \(2, 4, 8, 8\)"):
            engine(**inputs, out=wrong)


def test_a_graph_would_see_layers_that_are_replaced():
    """What tells CUDA graphs that a module is no longer the one that they were captured of."""
    module = torch.nn.Sequential(Toy()).eval()
    engine = EagerEngine(module, SPECS["float32"])
    before = engine._find_addresses()
    assert before == engine._find_addresses()
    module[0].conv = torch.nn.Conv2d(4, 4, 3, padding=1)
    replaced = engine._find_addresses()
    module[0].register_buffer("more", torch.zeros(1))
    assert len({before, replaced, engine._find_addresses()}) == 3
