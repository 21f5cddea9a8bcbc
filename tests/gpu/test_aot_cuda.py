"""AOTInductor packages on a GPU, plain and replayed: equal to the module that they were compiled from."""

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.aot_inductor import AotEngine

PROFILE = {"sample": ShapeRange((1, 4, 8, 8), (2, 4, 8, 8), (4, 4, 8, 8)), "timestep": ShapeRange((1,), (2,), (4,))}


class Toy(torch.nn.Module):
    """A convolution, a norm and attention, and a row's timestep."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = torch.nn.Conv2d(4, 32, 3, padding=1), torch.nn.Conv2d(32, 4, 3, padding=1)
        self.norm, self.project = torch.nn.GroupNorm(4, 32), torch.nn.Linear(32, 96)

    def forward(self, sample, timestep):
        hidden = self.norm(self.conv(sample)) + timestep.to(sample.dtype).reshape(-1, 1, 1, 1) / 1000
        tokens = hidden.flatten(2).transpose(1, 2)
        query, key, value = self.project(tokens).chunk(3, dim=-1)
        mixed = torch.nn.functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]
        return self.out(hidden + mixed.transpose(1, 2).reshape(hidden.shape))


def make_specs(dtype):
    return (
        TensorSpec("sample", dtype, ("batch", 4, 8, 8), "latents"),
        TensorSpec("timestep", "float32", ("batch",), "timestep"),
    )


def make_inputs(device, batch=2, seed=0):
    sample = torch.randn(batch, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
    return {"sample": sample.to(device), "timestep": torch.full((batch,), 100.0 + seed, device=device)}


@pytest.fixture(scope="module")
def built(device, tmp_path_factory):
    """The toy's precision and package, compiled once, and the toy."""
    try:
        from zeus_trt.export.aot_inductor import build_package, trace_program
    except ImportError as error:
        pytest.skip(f"zeus_trt.export needs {error.name}")

    dtype = "float16" if device.type == "cuda" else "float32"
    module = Toy().to(device, getattr(torch, dtype)).eval()
    inputs = make_inputs(device)
    inputs["sample"] = inputs["sample"].to(getattr(torch, dtype))
    package = tmp_path_factory.mktemp("aot") / "toy.pt2"
    build_package(trace_program(module, inputs, make_specs(dtype)), package)
    return dtype, package, module


@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
def test_equal_to_its_module(graph, built, device):
    if graph and device.type == "cpu":
        pytest.skip("dry run: the double sees torch's own operators only, not a package's")
    dtype, package, module = built
    allowed = 1e-3 if dtype == "float32" else 1e-2
    with AotEngine(package, make_specs(dtype), PROFILE, device, cuda_graph=graph) as engine:
        kept = []
        for batch in (2, 1, 3, 4, 2):
            inputs = make_inputs(device, batch, seed=len(kept))
            with torch.no_grad():
                expected = module(inputs["sample"].to(getattr(torch, dtype)), inputs["timestep"])
            got = engine(**inputs)
            assert got.device == device
            assert got.dtype == getattr(torch, dtype)
            torch.testing.assert_close(got, expected, rtol=allowed, atol=allowed)
            kept.append((got, got.clone()))
        assert all(torch.equal(got, copy) for got, copy in kept)
        with pytest.raises(ZeusError, match="sample"):
            engine(**make_inputs(device, batch=5))
    with pytest.raises(ZeusError, match="closed engine"):
        engine(**make_inputs(device))
