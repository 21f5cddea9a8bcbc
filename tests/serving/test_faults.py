"""What goes wrong in one request stays there."""

import threading

import pytest
import torch
from serving_requests import Gate, make_labelled
from toy_bundle import denoise

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import draw_noise
from zeus_trt.serving import Batcher, FullError, LateError

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = {"class_labels": torch.tensor([3])}
BAD = {"class_labels": torch.tensor([7])}


def settings(seed=0, **more):
    ratio = None if "plan" in more else 0
    return {"num_steps": 6, "noise": draw_noise((1, 4, 8, 8), seed), "ratio": ratio, **more}


def poison(**inputs):
    """A toy engine whose rows of class 7 are not finite."""
    output = denoise(**inputs)
    output[inputs["class_labels"] == 7] = torch.nan
    return output


def count_threads():
    return sum(thread.name.startswith("zeus-trt") for thread in threading.enumerate())


def check_others(futures):
    """The other requests have the results of their serial runs."""
    for k, future in enumerate(futures):
        assert torch.equal(future.result(30).latents, make_labelled().generate(ONE, **settings(k)).latents)


def raise_at(number):
    def call(step):
        if step.index == number:
            raise RuntimeError("no preview")

    return call


@pytest.mark.parametrize(
    ("conditioning", "more", "error"),
    [
        (BAD, {}, r"^model_output: got NaN or infinity at full step 0"),
        (BAD, {"mode": "step"}, r"^model_output: got NaN"),
        (ONE, {"on_step": raise_at(3)}, "no preview"),
        (ONE, {"noise": torch.full((1, 4, 8, 8), torch.nan)}, r"^noise: got NaN"),
        (ONE, {"noise": torch.zeros(1, 3, 8, 8)}, r"^noise: got 3"),
        ({"class_labels": torch.tensor([99])}, {}, r"^label: got 99"),
        ({"class_labels": [1]}, {}, r"^class_labels: got list"),
        (ONE, {"plan": "FF"}, r"^plan: got"),
        (ONE, {"plan": "FQXFFF"}, r"no quantized graph"),
        (ONE, {"unheard": 1}, "unheard"),
    ],
)
def test_a_bad_request_fails_alone(conditioning, more, error):
    with Batcher(make_labelled(poison), max_rows=4) as batcher:
        futures = [batcher.submit(ONE, **settings(k)) for k in range(3)]
        bad = batcher.submit(conditioning, **settings(**more))
        with pytest.raises((ZeusError, RuntimeError, TypeError), match=error):
            bad.result(30)
        check_others(futures)
    assert (batcher.counters.failed, batcher.counters.finished) == (1, 3)


def test_an_engine_that_raises_fails_the_rows_of_that_call_alone():
    def fragile(**inputs):
        if len(inputs["sample"]) == 3:
            raise RuntimeError("out of memory")
        return denoise(**inputs)

    with Batcher(make_labelled(fragile), max_rows=8, max_wait=30.0) as batcher:
        together = [batcher.submit({"class_labels": torch.arange(3)}, num_steps=4, noise=draw_noise((3, 4, 6, 8), 0))]
        futures = [batcher.submit(ONE, **settings(k)) for k in range(2)]
        with pytest.raises(RuntimeError, match="out of memory"):
            together[0].result(30)
        check_others(futures)
    assert batcher.counters.failed == 1


@pytest.mark.parametrize("output", [None, torch.zeros(()), torch.zeros(1, 4, 8, 8), torch.zeros(2, 4, 8, 4)])
def test_an_engine_that_answers_wrongly_is_named(output):
    with Batcher(make_labelled(lambda **inputs: output), max_rows=4) as batcher:
        future = batcher.submit({"class_labels": torch.arange(2)}, num_steps=3, noise=draw_noise((2, 4, 8, 8), 0))
        with pytest.raises(ZeusError, match=r"^denoiser: got"):
            future.result(30)


@pytest.mark.parametrize("stage", ["waits for its begin", "is in the engine", "waits for the engine"])
def test_cancelled_rows_are_gone_at_the_next_call(stage):
    gate = Gate(is_open=False)
    with Batcher(make_labelled(gate), max_rows=1, max_active=2) as batcher:
        first = batcher.submit(ONE, **settings(0))
        gate.entered.wait(30)
        second = batcher.submit(ONE, **settings(1))
        while not batcher.counters.waiting:
            pass
        third = batcher.submit(ONE, **settings(2))
        gone = {"waits for its begin": third, "is in the engine": first, "waits for the engine": second}[stage]
        assert gone.cancel()
        assert gone.cancelled()
        gate.opened.set()
        for k, future in enumerate((first, second, third)):
            if future is not gone:
                expected = make_labelled().generate(ONE, **settings(k)).latents
                assert torch.equal(future.result(30).latents, expected)
    assert len(gate.rows) == 12 + (stage == "is in the engine")
    counters = batcher.counters
    assert (counters.cancelled, counters.finished, counters.queued, counters.active) == (1, 2, 0, 0)


def test_a_full_queue_refuses_and_takes_again():
    gate = Gate(is_open=False)
    with Batcher(make_labelled(gate), max_active=1, max_queue=2) as batcher:
        futures = [batcher.submit(ONE, **settings(k)) for k in range(3)]
        with pytest.raises(FullError, match=r"^queue: got a request when 2 wait already; expected fewer than max_que"):
            batcher.submit(ONE, **settings())
        assert futures.pop(1).cancel()
        futures.append(batcher.submit(ONE, **settings(2)))
        gate.opened.set()
        for future, seed in zip(futures, (0, 2, 2), strict=True):
            assert torch.equal(future.result(30).latents, make_labelled().generate(ONE, **settings(seed)).latents)
    assert batcher.counters.refused == 1


def test_a_time_limit_ends_a_request_wherever_it_is():
    gate = Gate(is_open=False)
    with Batcher(make_labelled(gate), max_rows=1, max_active=2) as batcher:
        in_engine = batcher.submit(ONE, time_limit=0.05, **settings(0))
        with pytest.raises(LateError, match=r"^time_limit: got 0\.05 s, which have passed; expected"):
            in_engine.result(30)
        busy = [batcher.submit(ONE, **settings(k)) for k in range(3)]
        queued = batcher.submit(ONE, time_limit=1e-6, **settings(3))
        gate.opened.set()
        with pytest.raises(LateError):
            queued.result(30)
        check_others(busy)
    assert (batcher.counters.failed, batcher.counters.finished) == (2, 3)
    assert sum(gate.rows) in (18, 19)  # the first one may be late for its first call, too


def test_who_has_a_deadline_goes_first():
    gate, order = Gate(is_open=False), []
    with Batcher(make_labelled(gate), max_active=1, max_rows=1) as batcher:
        batcher.submit(ONE, **settings())
        gate.entered.wait(30)
        for name, deadline in (("none", None), ("late", 20.0), ("soon", 10.0), ("none again", None)):
            future = batcher.submit(ONE, deadline=deadline, **settings())
            future.add_done_callback(lambda _, name=name: order.append(name))
        gate.opened.set()
    assert order == ["soon", "late", "none", "none again"]


@pytest.mark.parametrize("name", ["deadline", "time_limit"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "soon"])
def test_times_are_numbers(name, value):
    with Batcher(make_labelled()) as batcher, pytest.raises(ZeusError, match=f"^{name}: got"):
        batcher.submit(ONE, **{name: value}, **settings())


def test_closing_finishes_what_was_taken_and_takes_no_more():
    batcher = Batcher(make_labelled(), max_active=2)
    futures = [batcher.submit(ONE, **settings(k)) for k in range(10)]
    batcher.close()
    assert all(future.done() for future in futures)
    check_others(futures)
    batcher.close()
    with pytest.raises(ZeusError, match=r"^batcher: got a request after it was closed"):
        batcher.submit(ONE)
    assert not count_threads()


def test_leaving_the_block_with_an_error_cancels():
    gate = Gate(is_open=False)
    batcher = Batcher(make_labelled(gate), max_active=2)

    def leave():
        with batcher:
            futures.extend(batcher.submit(ONE, **settings(k)) for k in range(5))
            gate.entered.wait(30)
            threading.Timer(0.01, gate.opened.set).start()
            raise KeyError("user")

    futures: list = []
    with pytest.raises(KeyError):
        leave()
    assert all(future.cancelled() for future in futures)
    assert not count_threads()


def test_a_call_of_wrong_inputs_fails_where_it_is_made():
    with Batcher(make_labelled()) as batcher:
        engine = batcher.engine.full
        with pytest.raises(ZeusError, match=r"^class_labels: got the shape \(3,\); expected 2 rows"):
            engine(sample=torch.zeros(2, 4, 8, 8), timestep=torch.zeros(2), class_labels=torch.zeros(3))
        with pytest.raises(ZeusError, match=r"^engine: got no timestep"):
            engine(sample=torch.zeros(2, 4, 8, 8))
        assert engine(sample=torch.zeros(2, 4, 8, 8), timestep=5).shape == (2, 4, 8, 8)
