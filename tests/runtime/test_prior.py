"""Plans of the prior where a plan is taken: the session knows the solver."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from toy_bundle import make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import draw_noise
from zeus_trt.zeus_graph import Plan

STEPS = 12


def run(session, plan):
    return session.generate(num_steps=STEPS, noise=draw_noise((1, 4, 8, 8), 0), plan=plan)


def test_a_session_makes_the_plan_for_its_solver():
    session = make_session(scheduler=FlowMatchEulerDiscreteScheduler())
    plan = Plan.prior(session.solver.program(STEPS), 6)
    made = run(session, "prior:6")
    assert (made.report.plan, made.report.nfe) == (str(plan), 6)
    assert torch.equal(made.latents, run(session, plan).latents)
    assert run(session, "prior:turbo").report.nfe == Plan.uniform(STEPS, 4).nfe


def test_an_impossible_budget_is_refused():
    with pytest.raises(ZeusError, match="from 3 to 12"):
        run(make_session(scheduler=FlowMatchEulerDiscreteScheduler()), "prior:13")
