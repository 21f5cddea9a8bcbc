"""The first output that is not finite stops the trajectory, and is named."""

import pytest
import torch
from toy_bundle import denoise, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import draw_noise
from zeus_trt.runtime.finite_guard import FiniteGuard

NOISE = draw_noise((2, 4, 8, 8), seed=1)


def break_at(call, value):
    """A denoiser whose output has one bad number from its n-th call on, and how often it was called."""
    calls = []

    def denoiser(**inputs):
        calls.append(1)
        output = denoise(**inputs)
        if len(calls) > call:
            output[0, 0, 0, 0] = value
        return output

    return denoiser, calls


@pytest.mark.parametrize("mode", ["program", "step"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_step_is_named_and_nothing_runs_after_it(mode, value):
    denoiser, calls = break_at(9, value)
    session = make_session(engine=denoiser)
    plan = session.plan(20, 3)
    step = plan.full_steps[9]
    assert step != 9
    with pytest.raises(ZeusError, match=f"model_output: got NaN or infinity at full step {step};"):
        session.generate(plan=plan, num_steps=20, noise=NOISE, mode=mode)
    assert len(calls) == 10


def test_iterating_stops_too():
    denoiser, _ = break_at(2, float("nan"))
    session = make_session(engine=denoiser)
    with pytest.raises(ZeusError, match="full step 2"):
        list(session.sample(plan=session.plan(20, 3), num_steps=20, noise=NOISE))


def test_a_sum_that_overflows_is_no_fault():
    FiniteGuard(torch.device("cpu")).check(0, torch.full((2, 4), 3e38))


def test_elsewhere_the_device_remembers_the_first_bad_step():
    """The deferred form, which CUDA takes; here its tensors are on the CPU."""
    guard = FiniteGuard(torch.device("meta"))
    guard._first = torch.full((), 2**31 - 1, dtype=torch.int32)
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    for step, output in enumerate([good, good, bad, good, bad]):
        guard.check(step, output)
    with pytest.raises(ZeusError, match="model_output: got NaN or infinity at full step 2;"):
        guard.finish(good)


def test_latents_are_looked_at_at_the_end():
    guard = FiniteGuard(torch.device("cpu"))
    guard.finish(torch.ones(2))
    with pytest.raises(ZeusError, match="latents: got NaN or infinity at the last step"):
        guard.finish(torch.tensor([float("inf")]))
