"""Five hundred requests over one session in threads."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from toy_bundle import DIGITS, LABELS, make_session

from zeus_trt.runtime import draw_noise

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBER, KINDS, SIZE = 500, 20, 64
LEAK = NUMBER // 2 * 2 * 4 * SIZE * SIZE * 4  # bytes, if every request of the second half kept its latents


def ask(session, number):
    kind = number % KINDS
    steps = 5 + kind % 2
    return session.generate(
        {"class_labels": torch.tensor([kind % 10, 3])}, plan=session.plan(steps, kind % 4), num_steps=steps,
        noise=draw_noise((2, 4, SIZE, SIZE), kind), guidance_scale=1.0 + kind % 2,
        drift_threshold=0.1 if kind == 7 else None, mode="step" if kind % 5 == 0 else "auto",
    ).latents  # fmt: skip


def count_tensors():
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


def read_memory():
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_results_equal_serial_ones_and_nothing_grows():
    session = make_session(LABELS, labels=DIGITS)
    serial = [ask(session, kind) for kind in range(KINDS)]

    def check(number):
        return torch.equal(ask(session, number), serial[number % KINDS])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(NUMBER // 2)))
        tensors, memory = count_tensors(), read_memory()
        assert all(pool.map(check, range(NUMBER // 2)))
    assert count_tensors() == tensors
    assert read_memory() - memory < LEAK / 2
