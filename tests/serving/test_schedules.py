"""Random schedules of requests, cancels, faults and foreign threads: all end, and each as if it were alone."""

import functools
import gc
import random
import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch
from serving_requests import coarse, draw, make_labelled
from toy_bundle import denoise

from zeus_trt.runtime import EnginePair, draw_noise
from zeus_trt.serving import Batcher, FullError, LateError

pytestmark = pytest.mark.usefixtures("one_thread")
SERIAL = make_labelled()


class BrokenError(Exception):
    """What the engine of a schedule raises."""


@functools.cache
def expected(number):
    return draw(number).run(SERIAL).latents


class Schedule:
    """One batcher and what happens to it, all drawn from a seed.

    The engine cancels requests, raises and pauses at calls that are drawn before.
    """

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.futures, self.refused = {}, 0
        self.cancels = {self.dice.randrange(40) for _ in range(self.dice.randrange(4))}
        self.faults = {self.dice.randrange(40) for _ in range(self.dice.choice((0, 0, 1, 2)))}
        self.pauses = {self.dice.randrange(40) for _ in range(3)}
        self.calls = 0

    def answer(self, engine, **inputs):
        self.calls += 1
        if self.calls in self.pauses:
            time.sleep(0.002)  # others arrive
        if self.calls in self.cancels and self.futures:
            random.Random(self.calls).choice([*self.futures.values()]).cancel()
        if self.calls in self.faults:
            raise BrokenError
        return engine(**inputs)

    def submit(self, batcher, numbers, options):
        for number, option in zip(numbers, options, strict=True):
            try:
                self.futures[number] = draw(number).submit(batcher, **option)
            except FullError:
                self.refused += 1

    def draw_option(self):
        return self.dice.choice(({}, {}, {}, {"deadline": 1.0}, {"time_limit": 1e-9}, {"time_limit": 60.0}))

    def run(self):
        pair = EnginePair(*(functools.partial(self.answer, engine) for engine in (denoise, coarse)))
        numbers = self.dice.sample(range(40), self.dice.randint(1, 8))
        options = [self.draw_option() for _ in numbers]
        half, outcomes = len(numbers) // 2, []
        batcher = Batcher(
            make_labelled(pair), max_rows=self.dice.randint(1, 6), max_wait=self.dice.choice((0.0, 0.001, 0.05)),
            max_active=self.dice.randint(1, 6), max_queue=self.dice.choice((1, 20)),
        )  # fmt: skip
        foreign = threading.Thread(target=self.call_engine, args=(batcher, outcomes))
        late = threading.Thread(target=self.submit, args=(batcher, numbers[half:], options[half:]))
        for thread in (foreign, late):
            thread.start()
        self.submit(batcher, numbers[:half], options[:half])
        for thread in (foreign, late):
            thread.join(60)
            assert not thread.is_alive()
        batcher.close(cancel=self.dice.random() < 0.1)
        self.check(batcher, dict(zip(numbers, options, strict=True)), outcomes)

    def call_engine(self, batcher, outcomes):
        """As a pipeline's thread does."""
        for number in range(3):
            inputs = {"sample": draw_noise((1, 4, 8, 8), number), "timestep": torch.full((1,), 500.0)}
            inputs["class_labels"] = torch.tensor([number])
            try:
                outcomes.append(torch.equal(batcher.engine.full(**inputs), denoise(**inputs)))
            except BrokenError:
                outcomes.append(True)

    def check(self, batcher, options, outcomes):
        for number, future in self.futures.items():
            assert future.done()
            try:
                assert torch.equal(future.result(0).latents, expected(number)), number
            except CancelledError:
                pass
            except BrokenError:
                assert self.faults
            except LateError:
                assert options[number] == {"time_limit": 1e-9}
        assert outcomes == [True] * 3
        counters = batcher.counters
        assert counters.submitted == counters.finished + counters.failed + counters.cancelled == len(self.futures)
        assert (counters.refused, counters.calls) == (self.refused, self.calls)
        assert (counters.queued, counters.active, counters.waiting) == (0, 0, 0)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("zeus-trt")]


def run_schedules(seeds):
    for seed in seeds:
        print("schedule", seed)  # the last one is the one that failed
        Schedule(seed).run()


def test_schedules():
    run_schedules(range(40))


@pytest.mark.slow
def test_many_schedules():
    run_schedules(range(40, 600))


def test_nothing_is_kept_of_500_requests():
    asked = [draw(number, steps=(2, 3)) for number in range(25)]
    with Batcher(make_labelled(), max_rows=8) as batcher:

        def serve(rounds):
            for _ in range(rounds):
                for future in [one.submit(batcher) for one in asked]:
                    future.result(60)
            gc.collect()
            return len(gc.get_objects())

        before = serve(4)
        assert serve(16) < before + 250  # half an object per request; the threads that run differ in number
    assert batcher.counters.finished == 500
