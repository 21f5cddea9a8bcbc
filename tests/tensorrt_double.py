"""A TEST DOUBLE of the TensorRT module and of CUDA: it says what TensorRT's documentation says, and ran on no GPU."""

import contextlib
import copy
import ctypes
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from engine_samples import ASKED, write_engine

from zeus_trt.runtime.bundle.engine_folder import find_engine
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines import tensorrt as tensorrt_engine

TENSORS = {"sample": "HALF", "timestep": "FLOAT", "model_output": "HALF"}
SHAPES = {"sample": (-1, 4, 8, 8), "timestep": (-1,), "model_output": (-1, 4, 8, 8)}
PROFILE = {
    "sample": [(1, 4, 8, 8), (2, 4, 8, 8), (6, 4, 8, 8)],
    "timestep": [(1,), (2,), (6,)],
}  # the ends, and the best
INPUTS = (
    TensorSpec("sample", "float16", ("batch", 4, 8, 8), "latents"),
    TensorSpec("timestep", "float32", ("batch",), "timestep"),
)
OUTPUT = TensorSpec("model_output", "float16", ("batch", 4, 8, 8), "output")
MANIFEST = SimpleNamespace(inputs=INPUTS, output=OUTPUT, symbols=())


class DoubleContext:
    """Copies the sample to the output; can be told to say no."""

    def __init__(self, trt):
        self.trt = trt
        self.shapes = {}
        self.addresses = {}

    def set_device_memory(self, memory, size):
        self.memory = (memory, size)

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
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user")

    __version__ = "11.4.0.1"

    class ILogger:
        Severity = SimpleNamespace(ERROR="error", INTERNAL_ERROR="internal")

    def __init__(self):
        self.refuses = None
        self.streams = []
        self.contexts = []
        self.tensors = dict(TENSORS)
        self.shapes = dict(SHAPES)
        self.profile = dict(PROFILE)

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
            get_tensor_shape=self.shapes.__getitem__,
            get_tensor_profile_shape=lambda name, place: self.profile[name],
            create_execution_context=self.create_context,
            device_memory_size_v2=4096,
            get_weight_streaming_automatic_budget=lambda: 77,
        )

    def create_context(self, strategy):
        assert strategy == "user"
        if self.refuses == "create_execution_context":
            return None
        self.contexts.append(DoubleContext(self))
        return self.contexts[-1]


class DoubleEvent:
    """Says what was recorded and waited for."""

    log: ClassVar[list] = []

    def record(self, stream):
        self.log.append(("record", stream.cuda_stream))

    def synchronize(self):
        self.log.append(("synchronize",))


def make_stream(number):
    return SimpleNamespace(
        cuda_stream=number, wait_event=lambda event: DoubleEvent.log.append(("wait", number)),
        wait_stream=lambda other: None, synchronize=lambda: None,
    )  # fmt: skip


class DoubleGraph:
    """Replays by calling again what was captured, at the addresses of the capture."""

    def replay(self):
        self.context.execute_async_v3(99)


@pytest.fixture
def double(monkeypatch):
    """CUDA and TensorRT, doubled; tensors stay on the CPU."""
    trt = DoubleTensorRT()
    trt.stream = 7
    monkeypatch.setattr(tensorrt_engine, "import_tensorrt", lambda backend: trt)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: make_stream(trt.stream))
    monkeypatch.setattr(torch.cuda, "Event", DoubleEvent)
    DoubleEvent.log.clear()
    return trt


@pytest.fixture
def captures(double, monkeypatch):
    """CUDA graphs, doubled: the settings of every capture."""
    made = []

    @contextlib.contextmanager
    def capture(graph, **settings):
        made.append(settings)
        yield
        graph.context = copy.copy(double.contexts[-1])
        graph.context.shapes, graph.context.addresses = dict(graph.context.shapes), dict(graph.context.addresses)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: make_stream(double.stream))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", DoubleGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return made


@pytest.fixture
def engine_file(tmp_path):
    write_engine(tmp_path)
    return find_engine(tmp_path, ASKED)
