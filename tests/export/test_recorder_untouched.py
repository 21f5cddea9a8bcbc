"""A pipeline is not touched while it is recorded: not in its loop, and not for another thread."""

import threading

import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import capture
from zeus_trt.export.denoisers import choose_denoiser
from zeus_trt.export.recorder import record_calls
from zeus_trt.runtime.pipelines.acceleration import accelerate

SD = FAMILIES["sd15"]


@pytest.fixture
def sd():
    return SD.make()


def record(pipeline, run):
    return record_calls(pipeline, "unet", run)


RECORDERS = pytest.mark.parametrize("record", [record, choose_denoiser])


def look(pipeline):
    """The objects that a recorder could replace, by identity."""
    modules = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    parts = [(type(part), {name: id(value) for name, value in vars(part).items()}) for part in modules]
    hooks = [(dict(part._forward_hooks), dict(part._forward_pre_hooks)) for part in modules]
    methods = [(type(part).__call__, part.forward) for part in modules]
    scheduler = pipeline.scheduler
    attributes = {name: id(value) for name, value in vars(pipeline).items()}
    return type(pipeline), attributes, parts, hooks, methods, id(scheduler), type(scheduler), {*vars(scheduler)}


@RECORDERS
def test_the_pipeline_is_what_it_was_in_the_middle_of_a_recording(sd, record):
    before, looks = look(sd), []

    def note(pipeline, step, time, tensors):
        looks.append(look(sd))
        return tensors

    record(sd, lambda proxy: SD.run(proxy, **SD.base, callback_on_step_end=note))
    assert len(looks) == 2
    assert looks == [before] * 2
    assert look(sd) == before


@RECORDERS
def test_another_thread_gets_its_plain_result_in_the_middle_of_a_recording(sd, record):
    def generate():
        return SD.run(sd, **SD.base, generator=torch.Generator().manual_seed(3)).images

    expected, found = generate(), []

    def run_elsewhere(pipeline, step, time, tensors):
        thread = threading.Thread(target=lambda: found.append(generate()))
        thread.start()
        thread.join()
        return tensors

    record(sd, lambda proxy: SD.run(proxy, **SD.base, callback_on_step_end=run_elsewhere))
    assert len(found) == 2
    for images in found:
        torch.testing.assert_close(images, expected, rtol=0, atol=0)


@RECORDERS
@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_fault_in_the_middle_leaves_nothing(sd, record, fault):
    before, state = look(sd), torch.get_rng_state()

    def fail(*_):
        raise fault("in the loop")

    with pytest.raises(fault, match="in the loop"):
        record(sd, lambda proxy: SD.run(proxy, **SD.base, callback_on_step_end=fail))
    assert look(sd) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("component", [None, "unet"])
def test_an_accelerated_pipeline_is_refused(sd, component):
    with accelerate(sd, 1) as fast, pytest.raises(ZeusError, match="that is accelerated; expected what it was made of"):
        capture(fast, SD.settings, component)
