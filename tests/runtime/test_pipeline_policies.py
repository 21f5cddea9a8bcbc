"""Policies in a pipeline's own loop, and in the batcher: what a session does with them."""

import diffusers
import pytest
import torch
from toy_bundle import make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import accelerate, draw_noise, run_steps
from zeus_trt.serving import Batcher
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.policy_choice import read_policy

STEPS = 30
POLICIES = ["adaptive=0.02", "sada=3", "easycache=0.2", "drift=0.1", "easycache=0.1,floor=1,cap=2"]
NOISE = torch.cat([draw_noise((1, 4, 8, 8), [seed]) * size for seed, size in ((0, 1.0), (1, 0.3), (2, 3.0))])

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(torch.nn.Module):
    """A network double, which counts its calls."""

    calls = 0

    def forward(self, x, t):
        self.calls += 1
        return torch.tanh(1.5 * x) + torch.cos(t / 200)


class Loop(diffusers.DiffusionPipeline):
    """A pipeline double with guidance."""

    def __init__(self, net, scheduler):
        super().__init__()
        self.register_modules(net=net, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, noise, change=None):
        self.scheduler.set_timesteps(STEPS)
        latents = noise.clone()
        for i, t in enumerate(self.scheduler.timesteps):
            cond, uncond = self.net(latents, t), self.net(0.3 * latents, t)
            latents = self.scheduler.step(uncond + 3 * (cond - uncond), t, latents, return_dict=False)[0]
            if change and i == change[0]:
                latents = latents[change[1]]
        return latents


def run_loop(noise, policy):
    """The same without a pipeline."""
    net = Net()

    def denoiser(sample, timestep):
        return net(0.3 * sample, timestep[0]) + 3 * (net(sample, timestep[0]) - net(0.3 * sample, timestep[0]))

    steps = [*run_steps(denoiser, make_scheduler(), noise, Plan.uniform(STEPS, 3), STEPS,
                        make_policy=read_policy(policy))]  # fmt: skip
    return "".join(step.kind for step in steps), steps[-1].latents


def make_scheduler():
    return diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pipeline_skips_what_a_session_skips(policy):
    pipeline, noise = Loop(Net(), make_scheduler()), NOISE
    letters, expected = run_loop(noise, policy)
    with accelerate(pipeline, policy=policy) as fast:
        found = fast(noise)
    assert fast.report.plan == letters
    assert fast.report.nfe == letters.count("F") < STEPS
    assert fast.report.engine_calls == pipeline.net.calls == 2 * fast.report.nfe
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for row in range(2):
        with accelerate(pipeline, policy=policy) as alone:
            torch.testing.assert_close(alone(noise[row : row + 1])[0], found[row], rtol=1e-5, atol=1e-5)
        assert alone.report.row_plans == (fast.report.row_plans[row],) == (alone.report.plan,)


@pytest.mark.parametrize("part", [slice(1), (slice(None), slice(None), slice(4))], ids=["rows", "height"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_that_shrinks_begins_anew(policy, part):
    pipeline = Loop(Net(), make_scheduler())
    with accelerate(pipeline, policy=policy) as fast:
        assert fast(NOISE, change=(14, part)).isfinite().all()
    assert fast.report.plan[15] == "F"
    assert len(fast.report.plan) == STEPS


def test_a_policy_that_is_not_known_is_refused():
    pipeline = Loop(Net(), make_scheduler())
    with pytest.raises(ZeusError, match="policy: got 'sago'"):
        accelerate(pipeline, policy="sago")
    with pytest.raises(ZeusError, match="got one beside a policy"):
        accelerate(pipeline, policy="sada", drift_threshold=0.1)


def test_the_batcher_takes_policies():
    session = make_session()
    asked = [{"num_steps": 20, "noise": draw_noise((1, 4, 8, 8), [k]), "policy": name}
             for k, name in enumerate(POLICIES)]  # fmt: skip
    with Batcher(session, max_rows=4) as batcher:
        results = [future.result(60) for future in [batcher.submit(**one) for one in asked]]
    for one, result in zip(asked, results, strict=True):
        expected = session.generate(**one)
        assert torch.equal(result.latents, expected.latents)
        assert (result.report.plan, result.report.nfe) == (expected.report.plan, expected.report.nfe)


def test_the_batcher_calls_the_engine_for_the_rows_that_need_it():
    session = make_session()
    asked = {"num_steps": STEPS, "noise": NOISE, "policy": "easycache=0.03"}
    with Batcher(session, max_rows=4) as batcher:
        result = batcher.submit(**asked).result(60)
        rows = batcher.counters.rows
    plans = result.report.row_plans
    assert len(set(plans)) > 1
    assert rows == sum(plan.count("F") for plan in plans) < 3 * result.report.nfe
    assert torch.equal(result.latents, session.generate(**asked).latents)
