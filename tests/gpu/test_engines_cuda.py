"""The torch module as an engine, with and without CUDA graphs: equal to itself, whatever moves around it."""

import pytest
import torch
from diffusers import UNet2DModel

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EagerEngine
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.cuda_graph import CudaGraphs


class Toy(torch.nn.Module):
    """A convolution, a buffer, and a row's timestep."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("shift", torch.randn(4, 1, 1))

    def forward(self, sample, timestep):
        return torch.tanh(self.conv(sample)) + self.shift + timestep.to(sample.dtype).reshape(-1, 1, 1, 1) / 1000


def make_specs(dtype="float32"):
    return (
        TensorSpec("sample", dtype, ("batch", 4, "height", "width"), "latents"),
        TensorSpec("timestep", "float32", ("batch",), "timestep"),
    )


def make_inputs(device, batch=2, size=8, seed=0):
    sample = torch.randn(batch, 4, size, size, generator=torch.Generator().manual_seed(seed))
    return {"sample": sample.to(device), "timestep": torch.full((batch,), 100.0 + seed, device=device)}


def open_graphed(module, dtype="float32"):
    """An engine that replays its module; on a CPU, which it refuses, with the graphs put in by hand."""
    if next(module.parameters()).is_cuda:
        return EagerEngine(module, make_specs(dtype), cuda_graph=True)
    engine = EagerEngine(module, make_specs(dtype))
    engine._run = CudaGraphs(engine._call, engine.info.device, engine._find_addresses)
    return engine


def compute(module, inputs):
    with torch.no_grad():
        return module(**inputs)


@pytest.fixture
def module(graphs):
    return Toy().to(graphs).eval()


@pytest.fixture(params=["plain", "graph"])
def opened(request, module):
    return open_graphed(module) if request.param == "graph" else EagerEngine(module, make_specs())


def test_equal_to_the_module(opened, module, graphs):
    for seed in range(3):
        inputs = make_inputs(graphs, seed=seed)
        got = opened(**inputs)
        assert got.device == graphs
        torch.testing.assert_close(got, compute(module, inputs))


def test_inputs_on_the_host_are_moved(opened, module, graphs):
    inputs = make_inputs("cpu")
    expected = compute(module, make_inputs(graphs))
    torch.testing.assert_close(opened(**inputs), expected)
    torch.testing.assert_close(opened(sample=inputs["sample"].double(), timestep=torch.tensor(100)), expected)


def test_outputs_belong_to_the_caller(opened, graphs):
    first = opened(**make_inputs(graphs))
    kept = first.clone()
    opened(**make_inputs(graphs, seed=1))
    assert torch.equal(first, kept)
    first.zero_()
    torch.testing.assert_close(opened(**make_inputs(graphs)), kept)


def test_any_number_of_shapes(module, graphs):
    engine = open_graphed(module)
    for _ in range(2):
        for batch, size in ((1, 8), (2, 8), (3, 8), (1, 16), (2, 16), (1, 24), (2, 24)):  # more than it keeps
            inputs = make_inputs(graphs, batch, size, seed=batch)
            torch.testing.assert_close(engine(**inputs), compute(module, inputs))
    assert len(engine._run._graphs) == 4


def test_a_shape_that_is_used_stays(module, graphs):
    engine = open_graphed(module)
    engine(**make_inputs(graphs))
    kept = next(iter(engine._run._graphs.values()))
    for size in (16, 24, 32, 40, 48):
        engine(**make_inputs(graphs, size=size))
        engine(**make_inputs(graphs))
    assert kept in engine._run._graphs.values()


@pytest.mark.parametrize("change", ["in place", "moved", "replaced"])
@pytest.mark.parametrize("name", ["conv.weight", "shift"])
def test_weights_that_change(change, name, module, graphs):
    engine, inputs = open_graphed(module), make_inputs(graphs)
    before = engine(**inputs)
    value = dict([*module.named_parameters(), *module.named_buffers()])[name]
    owner, field = (module.conv, "weight") if name == "conv.weight" else (module, "shift")
    with torch.no_grad():
        if change == "in place":
            value.mul_(2)
        elif change == "moved":
            value.data = value.data * 2
        else:
            new = value.detach() * 2
            setattr(owner, field, torch.nn.Parameter(new) if isinstance(value, torch.nn.Parameter) else new)
    got = engine(**inputs)
    assert not torch.allclose(got, before)
    torch.testing.assert_close(got, compute(module, inputs))


def test_graphs_outlive_the_inference_mode_that_they_were_captured_in(module, graphs):
    engine, expected = open_graphed(module), compute(module, make_inputs(graphs))
    with torch.inference_mode():
        engine(**make_inputs(graphs, seed=1))
    torch.testing.assert_close(engine(**make_inputs(graphs)), expected)


def test_autocast_outside_does_not_reach_the_module(opened, module, graphs):
    expected = compute(module, make_inputs(graphs))
    with torch.autocast(graphs.type, torch.bfloat16):
        first, second = opened(**make_inputs(graphs)), opened(**make_inputs(graphs))
    for got in (first, second, opened(**make_inputs(graphs))):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected)


def test_a_half_module(graphs):
    module = Toy().to(graphs).eval()
    inputs = make_inputs(graphs)
    expected = compute(module, inputs)
    half = Toy().to(graphs, torch.float16).eval()
    for engine in (EagerEngine(half, make_specs("float16")), open_graphed(half, "float16")):
        got = engine(**inputs)
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.float(), expected, rtol=0, atol=1e-2)
        out = torch.empty_like(inputs["sample"])
        assert engine(**inputs, out=out) is out
        assert torch.equal(out, got.float())


def test_a_real_unet(graphs):
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(8, 16), norm_num_groups=4,
        layers_per_block=1, attention_head_dim=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(graphs).eval()  # fmt: skip
    engine, plain = open_graphed(unet), EagerEngine(unet, make_specs())
    for seed in range(3):
        inputs = make_inputs(graphs, seed=seed)
        expected = compute(unet, inputs).sample
        assert expected.abs().mean() > 1e-3
        assert torch.equal(plain(**inputs), expected)
        torch.testing.assert_close(engine(**inputs), expected)


def test_closing_gives_the_graphs_memory_back(cuda):
    module = Toy().to(cuda).eval()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    engine = open_graphed(module)
    engine(**make_inputs(cuda, size=2048))
    held = torch.cuda.memory_allocated() - before
    assert held >= 2 * 2 * 4 * 2048**2 * 4  # its own input and output, each of two rows
    engine.close()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < held / 4  # a library may keep a workspace
    with pytest.raises(ZeusError, match="closed engine"):
        engine(**make_inputs(cuda))
