"""Refitting TensorRT engines, against a TEST DOUBLE of the module (``tensorrt_double``): no GPU ran it.

The last test compares the double's names with the real TensorRT-RTX, where that is installed.
"""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import onnx
import pytest
import torch
from engine_samples import ASKED, SPEC, write_engine
from tensorrt_double import MANIFEST

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_folder import find_engine
from zeus_trt.runtime.engines.tensorrt import TensorRTEngine
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

COMBINED = {"a": ("a", "b")}  # TensorRT folded the weights a and b into one


class Refitter:
    """A DOUBLE: keeps what it is given, and asks for what it combined with that."""

    def __init__(self, trt, engine, logger):
        self.trt, self.given = trt, {}
        trt.refitters.append(self)

    def set_named_weights(self, name, weights):
        kind, address, count = weights
        self.given[name] = (kind, address, count)
        return self.trt.refuses != "set_named_weights"

    def get_missing_weights(self):
        asked = {other for name in self.given for other in COMBINED.get(name, ())}
        return sorted(asked - self.given.keys())

    def refit_cuda_engine(self):
        size = {"FLOAT": 4, "HALF": 2}
        self.read = {name: ctypes.string_at(at, count * size[kind]) for name, (kind, at, count) in self.given.items()}
        return not self.get_missing_weights() and self.trt.refuses != "refit_cuda_engine"


@pytest.fixture
def engine(double, engine_file):
    double.refitters = []
    double.Refitter = lambda engine, logger: Refitter(double, engine, logger)
    double.Weights = lambda kind, address, count: (kind, address, count)
    double.DataType = SimpleNamespace(FLOAT="FLOAT", HALF="HALF")
    return TensorRTEngine(engine_file, MANIFEST, device="cpu")


@pytest.fixture
def graph(tmp_path):
    weights = {"a": torch.randn(3, 2), "b": torch.randn(5).half(), "c": torch.randn(2)}
    made = [onnx.numpy_helper.from_array(value.numpy(), name) for name, value in weights.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], made)), tmp_path / "graph.onnx")
    return tmp_path / "graph.onnx", weights


def test_weights_are_given_with_those_that_were_combined_with_them(double, engine, graph):
    file, weights = graph
    engine._refit({"a": weights["a"] + 1}, file)
    assert double.refitters[0].read == {
        "a": (weights["a"] + 1).numpy().tobytes(), "b": weights["b"].numpy().tobytes(),
    }  # fmt: skip


@pytest.mark.parametrize("refuses", ["set_named_weights", "refit_cuda_engine"])
def test_a_refusal_is_an_error(double, engine, graph, refuses):
    double.refuses = refuses
    with pytest.raises(ZeusError, match=r"could not (take the weight a|be refitted)"):
        engine._refit({"a": graph[1]["a"]}, graph[0])


def test_a_weight_that_the_graph_lacks_is_an_error(double, engine, graph, monkeypatch):
    monkeypatch.setitem(COMBINED, "a", ("a", "z"))
    with pytest.raises(ZeusError, match="be refitted without z"):
        engine._refit({"a": graph[1]["a"]}, graph[0])


def test_an_engine_that_is_not_refittable_is_refused_with_the_command_that_builds_one(tmp_path):
    asked = replace(ASKED, options={"refittable": True})
    write_engine(tmp_path, replace(SPEC, options={**SPEC.options, "refittable": False}))
    with pytest.raises(
        ZeusError, match=r"built with refittable False, asked for True.*--backend tensorrt --refittable`"
    ):
        find_engine(tmp_path, asked)
    write_engine(tmp_path, replace(SPEC, options={**SPEC.options, "refittable": True}))
    assert find_engine(tmp_path, asked).record.spec.options["refittable"]


def test_the_double_has_the_names_of_tensorrt_rtx():
    pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")
    trt = import_tensorrt("tensorrt-rtx")
    assert all(hasattr(trt.Refitter, name) for name in vars(Refitter) if not name.startswith("_"))
    assert trt.Weights(trt.DataType.HALF, 16, 4).size == 4
