"""Plans of TensorRT that others built, against a TEST DOUBLE of the module and of CUDA (``tensorrt_double``).

Nothing here ran on a GPU or against a real engine.
"""

from dataclasses import replace

import pytest
import torch
from tensorrt_double import double as double

from zeus_trt.errors import ZeusError
from zeus_trt.export import foreign_plan
from zeus_trt.export.foreign_findings import Findings
from zeus_trt.export.foreign_plan import read_plan
from zeus_trt.export.foreign_trial import Trial
from zeus_trt.export.foreign_wiring import wire
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime.bundle.border import DISCRETE, FLOW
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec
from zeus_trt.runtime.engines.hardware import Processor


@pytest.fixture
def plan(double, tmp_path, monkeypatch):
    """A file, and a double that reads it as an engine."""
    path = tmp_path / "net.plan"
    path.write_bytes(b"plan")

    def find(backend):
        if backend != "tensorrt":
            raise ZeusError(f"{backend}: got no package; expected one. Install it.")
        return double

    monkeypatch.setattr(foreign_plan, "import_tensorrt", find)
    monkeypatch.setattr(foreign_plan, "find_gpu", lambda: Processor("NVIDIA RTX A6000", "sm_86"))
    return path


def test_names_types_and_ranges_come_from_the_engine(plan):
    model = read_plan(plan, "sample")
    assert [(spec.name, spec.dtype, spec.axes) for spec in model.inputs] == [
        ("sample", "float16", ("sample_0", 4, 8, 8)), ("timestep", "float32", ("timestep_0",)),
    ]  # fmt: skip
    assert model.rules.symbols[0] == SymbolSpec("sample_0", (), maximum=6)
    assert (model.outputs, model.backend, model.version) == (("model_output",), "tensorrt", "11.4.0.1")
    assert (model.precision, str(model.target)) == (Precision.FP16, "sm_86 (NVIDIA RTX A6000)")


def test_it_is_computed_with_its_border_and_written_with_its_record(double, plan, tmp_path):
    """The double returns its latents."""
    model = replace(read_plan(plan, "sample"), device="cpu")
    wiring = wire(model, "sample", "timestep")
    latents, times = torch.randn(3, 4, 8, 8), torch.tensor([900.0, 500.0, 100.0])
    inputs = {"sample": latents, "timestep": times}
    flow = Parameterization(FLOW, "sample", "sigma")
    output = model.compute(wiring, flow, inputs)
    expected = (latents - latents.half().float()) / (times / 1000)[:, None, None, None]
    assert output.dtype == torch.float32
    assert torch.allclose(output, expected, atol=1e-7)
    output_spec = replace(wiring.inputs[0], name="model_output", role="output")
    symbols = tuple(replace(spec, observed=(1, 2)) for spec in wiring.symbols if spec.name == "batch")
    manifest = Manifest("net", "denoiser", "ImportedEngine", {}, model.digest, "flow_prediction", wiring.inputs,
                        output_spec, symbols, None, (), {})  # fmt: skip
    found = Findings(Trial(model, flow, times, {}), wiring, {}, ())
    manifest = model.complete(manifest, found, tmp_path)
    [record] = tmp_path.glob("engines/*/engine.json")
    assert (record.parent / "denoiser.plan").read_bytes() == b"plan"
    assert manifest.foreign.output.name == "model_output"
    assert [spec.role for spec in manifest.foreign.inputs] == ["latents", "timestep"]


def test_a_fixed_row_and_a_scalar_time_are_called_by_rows(double, plan):
    double.shapes |= {"sample": (1, 4, 8, 8), "timestep": ()}
    model = replace(read_plan(plan, "sample"), device="cpu")
    wiring = wire(model, "sample", "timestep")
    assert wiring.by_rows
    inputs = {"sample": torch.randn(3, 4, 8, 8), "timestep": torch.tensor([900.0, 500.0, 100.0])}
    output = model.compute(wiring, Parameterization(DISCRETE, "epsilon"), inputs)
    assert torch.equal(output, inputs["sample"].half().float())
    assert len(double.streams) == 3


def test_what_does_not_read_is_one_sentence(double, plan, monkeypatch):
    double.refuses = "deserialize"
    with pytest.raises(ZeusError, match=r"net\.plan, which does not read here .tensorrt 11.4.0.1: The engine plan file "
                       r"is not compatible; tensorrt-rtx is not installed.; expected a plan for this GPU"):  # fmt: skip
        read_plan(plan, "sample")
    double.refuses = None
    double.tensors |= {"other_output": "HALF"}
    with pytest.raises(ZeusError, match="with 2 inputs and 2 outputs; expected latents, a timestep and one output"):
        read_plan(plan, "sample")
    double.tensors["timestep"] = "FP4"
    with pytest.raises(ZeusError, match="got the input timestep of FP4; expected a type that torch has"):
        read_plan(plan, "sample")
    monkeypatch.setattr(foreign_plan, "find_gpu", lambda: None)
    with pytest.raises(ZeusError, match="on a machine without a CUDA device; expected a GPU of the kind that it was"):
        read_plan(plan, "sample")
