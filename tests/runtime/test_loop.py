"""The loop in step mode: equal to the plain loop at r = 0, by the plan elsewhere."""

import diffusers
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import count_evaluations, draw_noise, run_steps
from zeus_trt.zeus_graph import Plan


def toy(**inputs):
    return torch.tanh(inputs["sample"] * 1.3) + 0.001 * inputs["timestep"][:, None, None, None]


def finish(steps):
    *_, last = steps
    return last.latents


@pytest.mark.parametrize("scheduler", [None, diffusers.EulerDiscreteScheduler()], ids=["its own", "which scales"])
def test_full_run_is_the_plain_diffusers_loop_to_the_bit(open_session, scheduler):
    session = open_session("unet-flow", scheduler)
    labels = torch.tensor([3, 7])
    result = session.generate(
        {"class_labels": labels}, plan=session.plan(8, 0), num_steps=8, guidance_scale=2.0, seed=4
    )

    scheduler = session.solver.scheduler
    scheduler.set_timesteps(8)
    latents = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(4))
    latents = latents * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        scaled = scheduler.scale_model_input(latents, t) if hasattr(scheduler, "scale_model_input") else latents
        feed = {
            "sample": torch.cat([scaled, scaled]).numpy(),
            "timestep": t.float().expand(4).numpy(),
            "class_labels": torch.tensor([10, 10, 3, 7]).numpy(),
        }
        uncond, cond = torch.from_numpy(session.engine._session.run(None, feed)[0]).chunk(2)
        latents = scheduler.step(uncond + 2.0 * (cond - uncond), t, latents).prev_sample
    assert torch.equal(result.latents, latents)
    assert result.report.nfe == 8


@pytest.mark.parametrize("name", ["EulerDiscreteScheduler", "UniPCMultistepScheduler", "HeunDiscreteScheduler"])
def test_full_run_equals_the_plain_loop_on_a_toy(name):
    scheduler = getattr(diffusers, name)()
    count = count_evaluations(scheduler, 12)
    noise = draw_noise((2, 3, 4, 4), seed=1)
    got = finish(run_steps(toy, scheduler, noise, Plan.uniform(count, 0), 12))
    scheduler.set_timesteps(12)
    latents = noise * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        output = toy(sample=scheduler.scale_model_input(latents, t), timestep=t.float().expand(2))
        latents = scheduler.step(output, t, latents).prev_sample
    assert torch.equal(got, latents)


def test_plan_decides_the_calls_and_the_kinds():
    calls = []

    def counting(**inputs):
        calls.append(float(inputs["timestep"][0]))
        return toy(**inputs)

    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    plan = Plan("FFFXRXFXFF")
    steps = list(run_steps(counting, scheduler, draw_noise((1, 1, 4, 4), 0), plan, 10))
    assert "".join(step.kind for step in steps) == str(plan)
    assert calls == [steps[i].timestep for i in plan.full_steps]
    assert torch.equal(steps[3].output, 2 * steps[2].output - steps[1].output)
    assert torch.equal(steps[4].output, steps[2].output)


def test_the_users_scheduler_is_left_alone():
    scheduler = diffusers.DPMSolverMultistepScheduler()
    before = dict(vars(scheduler))
    finish(run_steps(toy, scheduler, draw_noise((1, 1, 4, 4), 0), Plan.uniform(6, 2), 6))
    assert vars(scheduler).keys() == before.keys()
    assert all(vars(scheduler)[key] is value for key, value in before.items())


def test_an_engine_that_reuses_its_output_buffer_changes_nothing():
    buffer = torch.empty(1, 1, 4, 4)

    def reusing(**inputs):
        return buffer.copy_(toy(**inputs))

    scheduler = diffusers.DPMSolverMultistepScheduler()
    noise, plan = draw_noise((1, 1, 4, 4), 0), Plan.uniform(20, 3)
    expected = finish(run_steps(toy, scheduler, noise, plan, 20))
    assert torch.equal(finish(run_steps(reusing, scheduler, noise, plan, 20)), expected)


def test_interleaved_trajectories_share_nothing():
    scheduler = diffusers.DPMSolverMultistepScheduler()
    plans = [Plan.uniform(12, 2), Plan.uniform(20, 3)]

    def start(plan, seed):
        return run_steps(toy, scheduler, draw_noise((1, 1, 4, 4), seed), plan, len(plan))

    alone = [finish(start(plan, seed)) for seed, plan in enumerate(plans)]
    first, second = start(plans[0], 0), start(plans[1], 1)
    for _ in range(5):
        next(first), next(second)
    assert torch.equal(finish(first), alone[0])
    assert torch.equal(finish(second), alone[1])


def test_evaluations_of_two_per_step_solvers():
    assert count_evaluations(diffusers.HeunDiscreteScheduler(), 10) == 19


def test_a_plan_of_another_length_is_refused():
    steps = run_steps(toy, diffusers.EulerDiscreteScheduler(), draw_noise((1, 1, 4, 4), 0), Plan("FFXF"), 10)
    with pytest.raises(ZeusError, match="got 4 steps; expected 10"):
        next(steps)


def test_noise_depends_on_the_seed_alone():
    assert torch.equal(draw_noise((2, 3), 5), draw_noise((2, 3), 5))
    assert not torch.equal(draw_noise((2, 3), 5), draw_noise((2, 3), 6))
