"""Policies decide for every row: a batch of unlike rows gives the rows of serial runs."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from toy_bundle import TEXT, denoise, embed, make_session
from toy_workload import curved

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Guidance, draw_noise, run_steps
from zeus_trt.zeus_graph import DriftPolicy, Plan, Predictor
from zeus_trt.zeus_graph.criteria import AdaptivePolicy, CriterionPolicy, EasyCachePolicy, SadaPolicy
from zeus_trt.zeus_graph.noise_grid import measure_scheduler
from zeus_trt.zeus_graph.policy_choice import read_policy

COUNT = 40
NOISE = torch.cat([draw_noise((1, 1, 8, 8), [seed]) * size for seed, size in ((0, 1.0), (1, 0.3), (2, 3.0))])
POLICIES = {
    "drift": partial(DriftPolicy, threshold=0.15),
    "adaptive": partial(AdaptivePolicy, threshold=0.004),
    "sada": SadaPolicy,
    "easycache": partial(EasyCachePolicy, threshold=0.03),
}


def run(make_policy, noise, count=COUNT):
    made = []

    def make(plan, grid):
        made.append(make_policy(plan, grid))
        return made[0]

    make.predictor = getattr(getattr(make_policy, "func", make_policy), "predictor", None)
    denoiser = partial(curved, guidance=2.0)
    steps = [*run_steps(denoiser, FlowMatchEulerDiscreteScheduler(), noise, Plan.uniform(count, 3), count,
                        make_policy=make)]  # fmt: skip
    return steps, made[0]


@pytest.mark.parametrize("name", POLICIES)
def test_unlike_rows_are_those_of_serial_runs(name):
    steps, policy = run(POLICIES[name], NOISE)
    serial = [run(POLICIES[name], NOISE[row : row + 1]) for row in range(3)]
    plans = ["".join(step.kind for step in alone) for alone, _ in serial]
    assert len(set(plans)) > 1  # they are unlike
    assert policy.row_plans == tuple(plans)
    for index, step in enumerate(steps):
        letters = {plan[index] for plan in plans}
        assert (step.kind == "F") == ("F" in letters)
        for row, (alone, _) in enumerate(serial):
            torch.testing.assert_close(step.output[row], alone[index].output[0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(step.latents[row], alone[index].latents[0], rtol=1e-6, atol=1e-6)


class Reads(torch.Tensor):
    """Counts what goes from the device to the host."""

    count = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("tolist", "item", "__bool__", "__float__", "__int__", "numpy"):
            Reads.count += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("name", POLICIES)
def test_a_step_reads_the_device_at_most_once(name):
    make, scheduler = POLICIES[name], FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(COUNT)
    rule = Predictor.parse(getattr(getattr(make, "func", make), "predictor", "zeus"))
    policy = make(Plan.uniform(COUNT, 3, (0.2, 0.1)), measure_scheduler(rule, scheduler, scheduler.timesteps.tolist()))
    sample, most = NOISE.as_subclass(Reads), []
    for step in range(COUNT):
        Reads.count = 0
        policy.see(step, sample)
        if policy.is_full(step):
            output = torch.sin(sample * 3 + step / 5).as_subclass(Reads)
            policy.take(step, output)
        else:
            output = policy.predict(step)
        most.append(Reads.count)
        sample = sample + 0.02 * output
    assert max(most) == 1


class Always(CriterionPolicy):
    def _allow(self, step, latents):
        return [True] * len(latents) if step > 4 else None


class Never(CriterionPolicy):
    def _allow(self, step, latents):
        return [False] * len(latents) if step > 4 else None


@pytest.mark.parametrize(
    ("make", "plan"),
    [
        (partial(Always, cap=2), "FFFFFRRFRRFRRFRRFRRF"),
        (partial(Always, cap=0), "F" * 20),
        (partial(Never, floor=1), "FFFFFRFRFRFRFRFRFRFF"),
        (partial(Never, floor=3, cap=2), "FFFFFRRFRRFRRFRRFRRF"),
        (Never, "F" * 20),
    ],
)
def test_floor_and_cap(make, plan):
    assert run(make, NOISE, 20)[1].plan.steps == plan


def test_easycache_is_the_formula():
    noise, tau = NOISE[:1], 0.2
    steps, _ = run(partial(EasyCachePolicy, threshold=tau), noise)
    samples = [noise, *(step.latents for step in steps)]
    total, full, rate, expected = 0.0, [], None, ""

    def size(tensor):
        return float(tensor.abs().mean())

    for i, step in enumerate(steps):
        skips = False
        if rate is not None and i >= 8:
            t = full[-1]
            total += rate * size(samples[i] - samples[i - 1]) / size(steps[t].output)
            skips = total < tau and i < COUNT - 1
        expected += "R" if skips else "F"
        if skips:
            kept = samples[i] + (steps[full[-1]].output - samples[full[-1]])
            torch.testing.assert_close(step.output, kept, rtol=1e-5, atol=1e-5)
            continue
        if full:
            p = full[-1]
            rate = size(step.output - steps[p].output) / size(samples[i] - samples[p])
            total = 0.0
        full.append(i)
    assert "".join(step.kind for step in steps) == expected
    assert expected.count("R") > 5


@pytest.mark.parametrize("text", ["easycache=0.05", "adaptive=0.05,floor=1,cap=2", "sada=3", "drift=0.2", "sada"])
def test_a_session_takes_policies_by_name(text):
    session, noise = make_session(), draw_noise((3, 4, 8, 8), seed=[1, 2, 3])
    result = session.generate(num_steps=30, noise=noise, policy=text)
    again = session.generate(num_steps=30, noise=noise[1:2], policy=text)
    torch.testing.assert_close(result.latents[1:2], again.latents, rtol=1e-5, atol=1e-5)
    assert result.report.mode == "step"
    assert 0 < again.report.nfe <= result.report.nfe < 30


@pytest.mark.parametrize(
    "text",
    ["", "saga", "sada=", "sada=x", "sada=-1", "sada=2.5", "sada=3,top=2", "drift=1,cap=2", "adaptive=0.1,cap=1.5"],
)
def test_other_policies_are_refused(text):
    with pytest.raises(ZeusError, match=r"(policy|interval): got .*; expected "):
        read_policy(text)(Plan("FFFF"), None)


def test_infinite_drift_changes_nothing():
    steps, _ = run(partial(DriftPolicy, threshold=math.inf), NOISE)
    assert "".join(step.kind for step in steps) == str(Plan.uniform(COUNT, 3))


class Counting:
    """An engine of ``make_session`` that counts the rows of its calls."""

    def __init__(self):
        self.rows = []
        self.denoise = denoise

    def __call__(self, **inputs):
        self.rows.append(len(inputs["sample"]))
        return self.denoise(**inputs)


UNLIKE = torch.cat([draw_noise((1, 4, 8, 8), [seed]) * size for seed, size in ((0, 1.0), (1, 0.3), (2, 3.0), (3, 1.0))])


def run_unlike(rows=slice(None), engine=None, sequential=False, **settings):
    """Four rows that skip at different steps, or some of them, with conditioning and guidance of each."""
    session = make_session(TEXT, engine=engine)
    text, negative = embed(5, batch=4)[rows], embed(6, batch=4)[rows]
    guidance = Guidance(3.0, {"encoder_hidden_states": negative}, sequential=sequential)
    settings = {"guidance": guidance, **settings}
    return session.generate({"encoder_hidden_states": text}, num_steps=30, noise=UNLIKE[rows], **settings)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("policy", ["drift=0.1", "adaptive=0.02", "easycache=0.03", "sada"])
def test_a_call_has_the_rows_that_need_it(policy, sequential):
    engine = Counting()
    result = run_unlike(engine=engine, policy=policy, sequential=sequential)
    report, plans = result.report, result.report.row_plans
    counts = [sum(plan[step] == "F" for plan in plans) for step in range(30)]
    assert {*counts} - {0, 4}, "rows that skip at different steps"
    expected = [count for count in counts if count]
    assert engine.rows == ([count for count in expected for _ in range(2)] if sequential else [2 * n for n in expected])
    assert report.plan.count("F") == report.nfe == len(expected)
    assert report.speedup_bound == pytest.approx(30 * 4 / sum(counts))
    for row in range(4):
        alone = run_unlike(slice(row, row + 1), policy=policy, sequential=sequential)
        assert alone.report.row_plans == (plans[row],) == (alone.report.plan,)
        torch.testing.assert_close(result.latents[row], alone.latents[0], rtol=1e-5, atol=1e-5)


def test_an_engine_of_other_sizes_has_all_rows():
    class Built(Counting):
        """Built for batches of four and more."""

        def __init__(self, **said):
            super().__init__()
            for name, value in said.items():
                setattr(self, name, value)

    least = SimpleNamespace(min=(4,), max=(8,))
    info = SimpleNamespace(profile={"sample": least}, device=torch.device("cpu"))
    for engine, sizes in ((Built(info=info), {4, 6, 8}), (Built(prepares_shapes=True), {8})):
        result = run_unlike(engine=engine, policy="easycache=0.03")
        assert {*engine.rows} == sizes
        torch.testing.assert_close(result.latents, run_unlike(policy="easycache=0.03").latents, rtol=1e-5, atol=1e-5)


def test_other_guidance_sees_all_rows():
    engine = Counting()
    wrap = Guidance(wrap=lambda denoiser: lambda **inputs: denoiser(**inputs))
    run_unlike(engine=engine, policy="easycache=0.03", guidance=wrap)
    assert {*engine.rows} == {4}


def test_a_run_without_rows_says_none():
    assert run_unlike(ratio=2).report.row_plans == ()
