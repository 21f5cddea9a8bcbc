"""The Python logic of TensorRT engines, against a TEST DOUBLE of the module and of CUDA (``tensorrt_double``).

Nothing here ran on a GPU or against a real deserialised engine.
The last test compares the double's names with the real TensorRT-RTX, where that is installed.
"""

from dataclasses import replace

import pytest
import torch
from engine_samples import ASKED, SPEC, write_engine
from tensorrt_double import MANIFEST, DoubleContext, DoubleEvent

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_folder import find_engine
from zeus_trt.runtime.engines import tensorrt as tensorrt_engine
from zeus_trt.runtime.engines.tensorrt import TensorRTEngine
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt


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


def test_all_contexts_share_one_block_and_wait_for_each_other(double, engine):
    for stream in (7, 8, 7):
        double.stream = stream
        engine(**request(2))
    assert len({context.memory for context in double.contexts}) == 1
    assert double.contexts[0].memory[1] == 4096
    log = [("record", 7), ("wait", 8), ("record", 8), ("wait", 7), ("record", 7)]
    assert DoubleEvent.log == log


def test_graphs_are_captured_once_per_shape(double, captures, engine_file):
    engine = TensorRTEngine(engine_file, MANIFEST, device="cpu", cuda_graph=True)
    for batch in (2, 2, 4, 2):
        inputs = request(batch)
        output = engine(**inputs)
        assert torch.equal(output, inputs["sample"].half())
    assert len(captures) == 2
    assert all(settings["capture_error_mode"] == "thread_local" for settings in captures)


def test_a_closed_engine_says_so(engine):
    with engine:
        pass
    with pytest.raises(ZeusError, match="tensorrt: got a call of a closed engine"):
        engine(**request(2))


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
    engine = TensorRTEngine(find_engine(tmp_path, ASKED), MANIFEST, device="cpu", weight_budget=asked)
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
            "device_memory_size_v2", "get_tensor_shape", "get_tensor_profile_shape",
        ],
        real.IExecutionContext: [name for name in vars(DoubleContext) if not name.startswith("__")],
        real.TensorIOMode: ["INPUT", "OUTPUT"],
        real.TensorLocation: ["HOST", "DEVICE"],
        real.ExecutionContextAllocationStrategy: ["USER_MANAGED"],
        real.DataType: list(tensorrt_engine.TORCH_TYPES),
        real.ILogger.Severity: ["ERROR", "INTERNAL_ERROR"],
    }  # fmt: skip
    assert [(owner, name) for owner, names in used.items() for name in names if not hasattr(owner, name)] == []
