"""Closing an engine while it is called, from another thread or from the call itself."""

import threading

import pytest
import torch
from aot_double import write

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.choose import open_engine
from zeus_trt.runtime.engines.eager import EagerEngine

INPUTS = {"sample": torch.ones(1, 2), "timestep": torch.ones(1)}
SPECS = (TensorSpec("sample", "float32", ("batch", 2), "latents"), TensorSpec("timestep", "float32", ("batch",)))


class Gate(torch.nn.Module):
    """A denoiser that stays in its call until it is let go."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def forward(self, sample, timestep):
        self.entered.set()
        assert self.gate.wait(60)
        return sample + 1


@pytest.fixture(params=[AOT_INDUCTOR, "eager"])
def held(request, home, engines, loaded, monkeypatch):
    """An engine, and the gate in its call."""
    gate = Gate().eval()
    if request.param == "eager":
        engine = EagerEngine(gate, SPECS)
    else:
        monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path, **options: gate)
        write(engines)
        engine = open_engine(engines, AOT_INDUCTOR, "cpu")
    yield engine, gate
    gate.gate.set()  # also where a test fails


def start(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_close_waits_for_the_call(held):
    engine, gate = held
    outputs, has_begun = [], threading.Event()
    calling = start(lambda: outputs.append(engine(**INPUTS)))
    assert gate.entered.wait(60)
    closing = start(lambda: [has_begun.set(), engine.close()])
    assert has_begun.wait(60)
    while not engine.is_closed:
        pass
    with pytest.raises(ZeusError, match="got a call of a closed engine"):
        engine(**INPUTS)
    assert closing.is_alive()
    assert engine._run is not None
    gate.gate.set()
    calling.join(60)
    closing.join(60)
    assert torch.equal(outputs[0], INPUTS["sample"] + 1)
    assert engine._run is None
    engine.close()


def test_many_threads_and_one_that_closes(held):
    """Each call ends well or says that the engine is closed."""
    engine, gate = held
    gate.gate.set()
    outcomes = []

    def call():
        try:
            while True:
                engine(**INPUTS)
        except BaseException as error:
            outcomes.append(error)

    threads = [start(call) for _ in range(4)]
    assert gate.entered.wait(60)
    engine.close()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 4
    assert all(isinstance(error, ZeusError) and "closed engine" in str(error) for error in outcomes)


def test_a_call_that_closes_its_engine_does_not_wait_for_itself():
    class Closing(torch.nn.Module):
        def forward(self, sample, timestep):
            engine.close()
            return sample + 1

    engine = EagerEngine(Closing().eval(), SPECS)
    assert torch.equal(engine(**INPUTS), INPUTS["sample"] + 1)
    with pytest.raises(ZeusError, match="got a call of a closed engine"):
        engine(**INPUTS)


def test_a_call_that_fails_leaves_the_engine_to_be_closed(held):
    engine, gate = held
    gate.gate.set()
    with pytest.raises(ZeusError):
        engine(sample=INPUTS["sample"])
    engine.close()
    assert engine._run is None
