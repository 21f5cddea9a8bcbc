"""The Python logic of TensorRT engines, against a TEST DOUBLE of the module and of CUDA.

Nothing here ran on a GPU or against a real deserialised engine: the double says what TensorRT's documentation says.
The last test compares its names with the real TensorRT-RTX, where that is installed.
"""

import contextlib
import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from engine_samples import NEEDS, SPEC, write_engine

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import tensorrt_engine
from zeus_trt.runtime.engine_folder import find_engine
from zeus_trt.runtime.manifest import TensorSpec
from zeus_trt.runtime.tensorrt_engine import TensorRTEngine
from zeus_trt.runtime.tensorrt_module import import_tensorrt

TENSORS = {"sample": "HALF", "timestep": "FLOAT", "model_output": "HALF"}
INPUTS = (
    TensorSpec("sample", "float16", ("batch", 4, 8, 8), "latents"),
    TensorSpec("timestep", "float32", ("batch",), "timestep"),
)
MANIFEST = SimpleNamespace(inputs=INPUTS, output=TensorSpec("model_output", "float16", ("batch", 4, 8, 8), "output"))


class DoubleContext:
    """Copies the sample to the output; can be told to say no."""

    def __init__(self, trt):
        self.trt = trt
        self.shapes = {}
        self.addresses = {}

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return self.trt.refuses != "set_input_shape"

    def set_tensor_address(self, name, address):
        self.addresses[name] = address
        return self.trt.refuses != "set_tensor_address"

    def infer_shapes(self):
        return ["timestep"] if self.trt.refuses == "infer_shapes" else []

    def get_tensor_shape(self, name):
        return (-1, 4, 8, 8) if self.trt.refuses == "get_tensor_shape" else self.shapes["sample"]

    def execute_async_v3(self, stream):
        self.trt.streams.append(stream)
        size = 2 * torch.Size(self.shapes["sample"]).numel()
        ctypes.memmove(self.addresses["model_output"], self.addresses["sample"], size)
        return self.trt.refuses != "execute_async_v3"


class DoubleTensorRT:
    """A module with as much of TensorRT's API as the engine uses."""

    TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")
    TensorLocation = SimpleNamespace(HOST="host", DEVICE="device")

    class ILogger:
        Severity = SimpleNamespace(ERROR="error", INTERNAL_ERROR="internal")

    def __init__(self):
        self.refuses = None
        self.streams = []
        self.contexts = []
        self.tensors = dict(TENSORS)

    def Runtime(self, logger):
        self.logger = logger
        return SimpleNamespace(deserialize_cuda_engine=self.deserialize)

    def deserialize(self, data):
        if self.refuses == "deserialize":
            self.logger.log("error", "The engine plan file is not compatible")
            return None
        names = list(self.tensors)
        return SimpleNamespace(
            num_io_tensors=len(names),
            get_tensor_name=names.__getitem__,
            get_tensor_dtype=lambda name: SimpleNamespace(name=self.tensors[name]),
            get_tensor_mode=lambda name: "output" if name.endswith("output") else "input",
            get_tensor_location=lambda name: "device",
            create_execution_context=self.create_context,
            get_weight_streaming_automatic_budget=lambda: 77,
        )

    def create_context(self):
        if self.refuses == "create_execution_context":
            return None
        self.contexts.append(DoubleContext(self))
        return self.contexts[-1]


@pytest.fixture
def double(monkeypatch):
    """CUDA and TensorRT, doubled; tensors stay on the CPU."""
    trt = DoubleTensorRT()
    trt.stream = 7
    monkeypatch.setattr(tensorrt_engine, "import_tensorrt", lambda backend: trt)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=trt.stream))
    return trt


@pytest.fixture
def engine_file(tmp_path):
    write_engine(tmp_path)
    return find_engine(tmp_path, NEEDS)


@pytest.fixture
def engine(double, engine_file):
    return TensorRTEngine(engine_file, MANIFEST, device="cpu")


def request(batch, **changes):
    return {"sample": torch.randn(batch, 4, 8, 8), "timestep": torch.rand(batch) * 999, **changes}


def test_runs_on_torchs_stream_and_owns_its_output(double, engine):
    inputs = request(2)
    first, second = engine(**inputs), engine(**request(2))
    assert first.dtype == torch.float16
    assert torch.equal(first, inputs["sample"].half())
    assert first.data_ptr() != second.data_ptr()
    assert double.streams == [7, 7]
    assert len(double.contexts) == 1
    assert "tensorrt 11.4.0.1" in repr(engine)


def test_every_stream_has_its_own_context(double, engine):
    engine(**request(2))
    double.stream = 8
    engine(**request(2))
    assert len(double.contexts) == 2


@pytest.mark.parametrize("timestep", [torch.tensor(500), torch.tensor([500]), torch.full((2,), 500)])
def test_timesteps_of_any_kind(double, engine, timestep):
    engine(**request(2, timestep=timestep))
    assert double.contexts[0].shapes["timestep"] == (2,)


def test_shapes_are_checked_before_anything_is_enqueued(double, engine):
    with pytest.raises(ZeusError, match=r"guidance doubles the batch: 2 x 3 = 6\); expected 1\.\.4"):
        engine(**request(6))
    with pytest.raises(ZeusError, match=r"got the inputs \['sample'\]"):
        engine(sample=torch.zeros(2, 4, 8, 8))
    assert double.streams == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("set_input_shape", "take the shape of sample"),
        ("set_tensor_address", "take the address of sample"),
        ("infer_shapes", "without timestep"),
        ("get_tensor_shape", r"which is \(-1, 4, 8, 8\)"),
        ("execute_async_v3", "could not run"),
        ("create_execution_context", "get room for a context"),
    ],
)
def test_every_no_is_an_error(double, engine, call, words):
    double.refuses = call
    with pytest.raises(ZeusError, match=words):
        engine(**request(2))


def test_an_engine_that_does_not_load_says_what_tensorrt_said(double, engine_file):
    double.refuses = "deserialize"
    with pytest.raises(ZeusError, match=r"could not be loaded \(The engine plan file is not compatible\)"):
        TensorRTEngine(engine_file, MANIFEST, device="cpu")


def test_an_engine_of_other_tensors(double, engine_file):
    double.tensors = {"sample": "FLOAT", "something": "FLOAT"}
    with pytest.raises(ZeusError, match="sample, something"):
        TensorRTEngine(engine_file, MANIFEST, device="cpu")


def test_nothing_is_deserialised_without_cuda(double, engine_file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ZeusError, match="got no CUDA device"):
        TensorRTEngine(engine_file, MANIFEST)


def test_nothing_is_deserialised_that_was_changed(double, engine_file):
    engine_file.path.write_bytes(b"EnginE")
    with pytest.raises(ZeusError, match="was changed since it was built"):
        TensorRTEngine(engine_file, MANIFEST, device="cpu")
    with pytest.raises(ZeusError, match="another GPU"):
        TensorRTEngine(replace(engine_file, reasons=("another GPU",)), MANIFEST, device="cpu")


@pytest.mark.parametrize(("asked", "budget"), [(None, 77), (5, 5)])
def test_weight_streaming_budget(double, tmp_path, asked, budget):
    write_engine(tmp_path, replace(SPEC, options={"weight_streaming": True}))
    engine = TensorRTEngine(find_engine(tmp_path, NEEDS), MANIFEST, device="cpu", weight_budget=asked)
    assert engine._engine.weight_streaming_budget_v2 == budget


def test_the_double_has_no_name_that_the_real_module_has_not():
    try:
        real = import_tensorrt("tensorrt-rtx")
    except ZeusError as error:
        pytest.skip(str(error))
    used = {
        real.Runtime: ["deserialize_cuda_engine", "engine_host_code_allowed"],
        real.ICudaEngine: [
            "num_io_tensors", "get_tensor_name", "get_tensor_dtype", "get_tensor_mode", "get_tensor_location",
            "create_execution_context", "get_weight_streaming_automatic_budget", "weight_streaming_budget_v2",
        ],
        real.IExecutionContext: [name for name in vars(DoubleContext) if not name.startswith("__")],
        real.TensorIOMode: ["INPUT", "OUTPUT"],
        real.TensorLocation: ["HOST", "DEVICE"],
        real.DataType: list(tensorrt_engine._TORCH_TYPES),
        real.ILogger.Severity: ["ERROR", "INTERNAL_ERROR"],
    }  # fmt: skip
    assert [(owner, name) for owner, names in used.items() for name in names if not hasattr(owner, name)] == []
