"""Choosing an engine: the best that runs here, and why; never in silence."""

from types import SimpleNamespace

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.engines import choose as engines
from zeus_trt.runtime.engines.choose import BACKENDS, choose_engine

PLAIN = SimpleNamespace(adapter=None, manifest=SimpleNamespace(foreign=None))  # a double of a bundle


@pytest.fixture
def pretend(monkeypatch):
    """Says which backends open, and which were tried."""

    def set_up(*running, gpu=False):
        tried = []

        def open_one(bundle, backend, device, cuda_graph, trust, precision):
            tried.append((backend, device.type))
            if (backend, device.type) not in running:
                raise ZeusError(f"{backend}: got none on {device.type}; expected one. Build it.")
            return backend

        monkeypatch.setattr(engines, "_open", open_one)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        return tried

    return set_up


def test_auto_goes_from_the_best_to_what_runs(pretend):
    tried = pretend(("aot-inductor", "cpu"), ("onnxruntime", "cpu"))
    engine, reason = choose_engine(PLAIN)
    assert engine == "aot-inductor"
    assert [backend for backend, _ in tried] == list(BACKENDS[:3])
    assert reason.startswith("the best that runs here (tensorrt: got none on cpu")


def test_a_gpu_comes_before_the_cpu(pretend):
    tried = pretend(("onnxruntime", "cuda"), ("aot-inductor", "cpu"), gpu=True)
    assert choose_engine(PLAIN)[0] == "onnxruntime"
    assert {device for _, device in tried} == {"cuda"}
    assert pretend(("onnxruntime", "cpu"), gpu=True) == []
    assert choose_engine(PLAIN)[0] == "onnxruntime"
    assert choose_engine(PLAIN, device="cpu")[0] == "onnxruntime"


def test_what_is_asked_for_has_no_substitute(pretend):
    tried = pretend(("onnxruntime", "cpu"))
    with pytest.raises(ZeusError, match="tensorrt: got none on cpu"):
        choose_engine(PLAIN, "tensorrt")
    assert tried == [("tensorrt", "cpu")]
    assert choose_engine(PLAIN, "onnxruntime") == ("onnxruntime", "asked for")
    pretend()
    with pytest.raises(ZeusError, match=r"tensorrt-rtx: got none on cpu.*onnxruntime: got none on cpu"):
        choose_engine(PLAIN)


def test_a_session_says_what_it_runs(digits_bundle):
    with Session(Bundle.open(digits_bundle("unet-flow"))) as session:
        assert session.backend == "onnxruntime"
        assert "tensorrt" in session.backend_reason
        assert "aot-inductor" in repr(session)
        plan = session.plan(20, 3)
        settings = {"plan": plan, "num_steps": 20}
        report = session.generate({"class_labels": torch.tensor([1])}, **settings).report
        assert report.backend == "onnxruntime"
    with pytest.raises(ZeusError, match="got a call of a closed engine"):
        session.generate({"class_labels": torch.tensor([1])}, **settings)


def test_a_cuda_graph_is_refused_where_there_is_none(digits_bundle):
    for backend in ("onnxruntime", "aot-inductor"):
        with pytest.raises(ZeusError, match=f"cuda_graph: got it for {backend} on cpu; expected TensorRT or AOT"):
            Session(digits_bundle("unet-flow"), backend=backend, device="cpu", cuda_graph=True)
