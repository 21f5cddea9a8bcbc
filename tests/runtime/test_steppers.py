"""Steppers own what they keep, whatever the denoiser does with its tensors, and refuse what is not an output."""

import diffusers
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import ProgramStepper, count_evaluations, draw_noise, run, run_steps
from zeus_trt.zeus_graph import Plan, fold, trace

KEEP_OUTPUTS = ("PNDM", "LMSDiscrete", "DEISMultistep", "UniPCMultistep", "IPNDM", "DPMSolverMultistep", "HeunDiscrete")
NOISE = draw_noise((1, 4, 6, 6), seed=0)
pytestmark = pytest.mark.usefixtures("one_thread")


def toy(sample, timestep):
    return torch.tanh(sample.roll(1, 1) * 1.3) + 0.001 * timestep[:, None, None, None]


_BUFFER = torch.empty(1, 4, 6, 6)


def answer_in_one_buffer(sample, timestep):
    return _BUFFER.copy_(toy(sample, timestep))


def answer_in_the_input(sample, timestep):
    return sample.copy_(toy(sample, timestep))


def overwrite_the_inputs(sample, timestep):
    output = toy(sample, timestep)
    sample.fill_(7.0)
    timestep.fill_(7.0)
    return output


def answer_with_a_gradient(sample, timestep):
    with torch.enable_grad():
        return toy(sample, timestep) * torch.nn.Parameter(torch.ones(()))


DENOISERS = [answer_in_one_buffer, answer_in_the_input, overwrite_the_inputs, answer_with_a_gradient]


def finish(denoiser, scheduler, plan, num_steps=11):
    steps = list(run_steps(denoiser, scheduler, NOISE, plan, num_steps))
    return steps[-1].latents, [step.output for step in steps]


@pytest.mark.parametrize("denoiser", DENOISERS)
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("name", KEEP_OUTPUTS)
def test_step_mode_owns_what_it_keeps(name, ratio, denoiser):
    scheduler = getattr(diffusers, f"{name}Scheduler")()
    plan = Plan.uniform(count_evaluations(scheduler, 11), ratio)
    expected, outputs = finish(toy, scheduler, plan)
    got, own_outputs = finish(denoiser, scheduler, plan)
    assert torch.equal(got, expected)
    assert not got.requires_grad
    assert all(torch.equal(one, other) for one, other in zip(own_outputs, outputs, strict=True))


@pytest.mark.parametrize("denoiser", DENOISERS)
@pytest.mark.parametrize("name", ["UniPCMultistep", "FlowMatchEulerDiscrete", "EulerDiscrete"])
def test_program_mode_owns_what_it_keeps(name, denoiser):
    program = fold(trace(getattr(diffusers, f"{name}Scheduler")(), 11), Plan.uniform(11, 2))
    expected = run(toy, ProgramStepper(program, NOISE))
    assert torch.equal(run(denoiser, ProgramStepper(program, NOISE)), expected)


def test_a_denoiser_that_returns_its_input_is_the_same_in_both_modes():
    scheduler, plan = diffusers.UniPCMultistepScheduler(), Plan.uniform(11, 2)
    expected, _ = finish(lambda sample, timestep: sample.clone(), scheduler, plan)
    got, _ = finish(lambda sample, timestep: sample, scheduler, plan)
    assert torch.equal(got, expected)
    program = fold(trace(scheduler, 11), plan)
    copied = run(lambda sample, timestep: sample.clone(), ProgramStepper(program, NOISE))
    assert torch.equal(run(lambda sample, timestep: sample, ProgramStepper(program, NOISE)), copied)


def test_a_stepper_is_asked_for_the_full_steps_of_its_plan():
    plan = Plan("FFFXRXFXFF")
    stepper = ProgramStepper(fold(trace(diffusers.DDIMScheduler(clip_sample=False), 10), plan), NOISE)
    asked = []
    while call := stepper.call:
        asked.append(stepper.index)
        stepper.feed(toy(*call))
    assert tuple(asked) == plan.full_steps
    assert stepper.call is None


@pytest.mark.parametrize(
    "output",
    [
        None,
        (NOISE,),
        NOISE > 0,
        NOISE.long(),
        NOISE.to(torch.complex64),
        NOISE[:, :2],
        NOISE[0],
        NOISE.repeat(2, 1, 1, 1),
    ],
    ids=["None", "tuple", "bool", "int", "complex", "channels", "rank", "batch"],
)
def test_what_is_not_an_output_is_refused(output):
    with pytest.raises(ZeusError, match=r"^denoiser: got .*; expected "):
        finish(lambda sample, timestep: output, diffusers.DDIMScheduler(), Plan.uniform(11, 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_output_that_is_not_finite_ends_the_run(value):
    def break_late(sample, timestep):
        return toy(sample, timestep) if timestep[0] > 500 else toy(sample, timestep).fill_(value)

    with pytest.raises(ZeusError, match="got NaN or infinity at full step 6"):
        finish(break_late, diffusers.DDIMScheduler(clip_sample=False), Plan.uniform(11, 2))


def test_a_denoiser_that_changes_its_conditioning_is_refused():
    def change(sample, timestep, prompt):
        prompt += 1
        return toy(sample, timestep) + prompt.mean()

    steps = run_steps(
        change, diffusers.DDIMScheduler(), NOISE, Plan.uniform(11, 2), 11, conditioning={"prompt": torch.zeros(1)}
    )
    with pytest.raises(ZeusError, match="got a call that changes its conditioning"):
        next(steps)
