"""Plans with Q: full steps that another engine answers, in every way of running a plan."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import (
    EnginePair,
    ProgramStepper,
    Session,
    draw_noise,
    run,
    run_steps,
)
from zeus_trt.runtime.calls import ModelCall
from zeus_trt.runtime.report import bound_speedup
from zeus_trt.zeus_graph import Plan, fold, trace

NOISE = draw_noise((2, 1, 4, 4), seed=0)
MIXED = "FQXRQXRFXRQXRFFQ"


def full(sample, timestep):
    return torch.tanh(sample.roll(1, -1) * 1.3) + 0.001 * timestep[:, None, None, None]


class Coarse:
    """A double of a quantized engine: the toy, rounded. It counts its calls."""

    def __init__(self, denoiser=full):
        self.denoiser, self.calls = denoiser, 0

    def __call__(self, **inputs):
        self.calls += 1
        return (self.denoiser(**inputs) * 16).round() / 16


def test_a_plan_counts_and_prices_quantized_steps():
    plan = Plan("fqxqf")
    assert (plan.full_steps, plan.nfe, plan.is_plain) == ((0, 1, 3, 4), 4, False)
    assert plan.cost(0.5) == 3.0
    assert plan.speedup_bound == 5 / 4
    assert "quantized      1, 3" in plan.describe()
    assert plan.with_full(2).steps == "FQFQF"
    assert plan.with_quantized([0]).steps == "QFXFF"
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan("QQXQ").is_plain is False


@pytest.mark.parametrize("wrong", ["XQF", "QXF", "FFX", "FQZ"])
def test_quantized_steps_obey_the_rules_of_full_ones(wrong):
    with pytest.raises(ZeusError, match=r"^plan: got"):
        Plan(wrong)


def test_each_engine_runs_its_steps_in_both_modes():
    scheduler, plan = FlowMatchEulerDiscreteScheduler(), Plan(MIXED)
    coarse = Coarse()
    steps = list(run_steps(EnginePair(full, coarse), scheduler, NOISE, plan, len(plan)))
    assert coarse.calls == MIXED.count("Q") == sum(step.kind == "Q" for step in steps)
    assert "".join(step.kind for step in steps) == MIXED
    for step in steps:
        assert (step.kind != "Q") or torch.equal(step.output, (step.output * 16).round() / 16)
    stepper = ProgramStepper(fold(trace(scheduler, len(plan)), plan), NOISE)
    run(ModelCall(EnginePair(full, coarse), stepper), stepper)
    torch.testing.assert_close(stepper.latents, steps[-1].latents, rtol=1e-5, atol=1e-5)


def test_equal_engines_make_the_plan_without_q():
    scheduler, plan = FlowMatchEulerDiscreteScheduler(), Plan(MIXED)
    *_, mixed = run_steps(EnginePair(full, full), scheduler, NOISE, plan, len(plan))
    *_, plain = run_steps(full, scheduler, NOISE, plan.with_quantized(()), len(plan))
    assert torch.equal(mixed.latents, plain.latents)


def test_one_engine_refuses_q():
    with pytest.raises(ZeusError, match=r"plan: got Q at step 1 for one engine; expected EnginePair"):
        list(run_steps(full, FlowMatchEulerDiscreteScheduler(), NOISE, Plan("FQF"), 3))


def test_the_bound_is_in_cost():
    assert bound_speedup("FFXF", 3.0, 0.0) == 4 / 3
    assert bound_speedup("FQXF", 2.0, 0.5) == pytest.approx(4 / 2.5)
    assert bound_speedup("QQQQ", 0.0, 2.0) == 1.0


def test_a_session_runs_two_engines(digits_bundle):
    session = Session(digits_bundle("unet-flow"))
    coarse = Coarse(session.engine)
    pair = Session(session.bundle, engine=EnginePair(session.engine, coarse))
    conditioning, plan = session.label_images([3], 1), Plan("FQXRQXRFXF")
    found = [pair.generate(conditioning, plan=plan, num_steps=10, seed=1, mode=mode) for mode in ("program", "step")]
    assert coarse.calls == 4
    torch.testing.assert_close(found[0].latents, found[1].latents, rtol=1e-4, atol=1e-4)
    assert found[0].report.plan == plan.steps
    assert found[0].report.engine_seconds > 0
    outputs = list(pair.compare(conditioning, num_steps=4, seed=1, guidance_scale=2.0))
    assert len(outputs) == 4
    assert all(not torch.equal(*pair_of) for pair_of in outputs)
    assert all(torch.allclose(*pair_of, atol=0.1) for pair_of in outputs)
    with pytest.raises(ZeusError, match="zeus-trt quantize"):
        session.generate(conditioning, plan=plan, num_steps=10)
