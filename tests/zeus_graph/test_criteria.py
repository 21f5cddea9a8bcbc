"""Published criteria: the steps that they skip and what fills these, against the formulas written out."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from toy_bundle import make_session
from toy_workload import curved

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import draw_noise, run_steps
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.criteria import AdaptivePolicy, SadaPolicy

COUNT = 50


def run(make_policy, count=COUNT):
    """The letters, the samples before every step, and the outputs used, of a run of a toy denoiser."""
    noise = draw_noise((1, 1, 8, 8), [0])
    letters, samples, outputs = "", [noise], []
    for step in run_steps(partial(curved, guidance=2.0), FlowMatchEulerDiscreteScheduler(), noise,
                          Plan("F" * count), count, make_policy=make_policy):  # fmt: skip
        letters += step.kind
        samples.append(step.latents.clone())
        outputs.append(step.output.clone())
    return letters, samples, outputs


@pytest.mark.parametrize("threshold", [0.003, 0.01, 0.05])
def test_adaptive_diffusion_skips_while_the_third_difference_is_small(threshold):
    letters, samples, outputs = run(partial(AdaptivePolicy, threshold=threshold))
    moves = [0.0] + [float((b - a).abs().mean()) for a, b in pairwise(samples)]
    expected, skipped = "", 0
    for step in range(COUNT):
        small = step >= 3 and abs((moves[step] + moves[step - 2]) / 2 - moves[step - 1]) <= threshold * moves[step - 1]
        skips = small and skipped < 4 and step < COUNT - 1
        skipped = skipped + 1 if skips else 0
        expected += "R" if skips else "F"
    assert letters == expected
    assert "R" in letters
    for step in range(COUNT):
        if letters[step] == "R":
            assert torch.equal(outputs[step], outputs[step - 1])


def test_a_larger_threshold_skips_more():
    counts = [run(partial(AdaptivePolicy, threshold=threshold))[0].count("F") for threshold in (0.0, 0.003, 0.05)]
    assert counts[0] == COUNT
    assert counts[0] > counts[1] > counts[2]


@pytest.mark.parametrize("interval", [2, 4])
def test_sada_skips_by_the_second_difference_and_then_evenly(interval):
    letters, _, outputs = run(partial(SadaPolicy, interval=interval))
    raw = []  # the last real output at every step
    expected, skipped = "", 0
    for step in range(COUNT):
        done, skips = step - 1, False
        if 20 <= done < 47:
            skips = done % interval != 0
        elif 10 <= done < 20:
            skips = float((outputs[done] - 2 * raw[done - 1] + raw[done - 2]).mean()) >= 0
        skips = skips and skipped < interval and step < COUNT - 1
        expected += ("R" if skipped else "X") if skips else "F"
        skipped = skipped + 1 if skips else 0
        if skips:
            torch.testing.assert_close(outputs[step], 2 * raw[step - 1] - raw[step - 2])
        raw.append(raw[-1] if skips else outputs[step])
    assert letters == expected
    assert letters[:11] == "F" * 11
    assert letters[11:21].count("F") < 10


def test_the_papers_criterion_says_nothing_for_euler_on_a_flow():
    """The solver's sample minus the Adams extrapolation is a multiple of the second difference."""
    f = torch.randn(3, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sample, step = torch.randn(100, dtype=torch.float64), 0.02
    solved = sample - step * f[0]
    extrapolated = sample - step * (0.625 * f[0] + 0.75 * f[1] - 0.375 * f[2])
    second = f[0] - 2 * f[1] + f[2]
    torch.testing.assert_close(solved - extrapolated, -0.375 * step * second)
    assert float(((solved - extrapolated) * second).mean()) < 0


@pytest.mark.parametrize("make", [AdaptivePolicy, SadaPolicy])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_short_runs_end_with_a_full_step(make, count):
    letters, _, _ = run(partial(make) if make is SadaPolicy else partial(make, threshold=10.0), count)
    assert len(letters) == count
    assert letters[-1] == "F"


def test_a_session_takes_a_policy():
    session, noise = make_session(), draw_noise((1, 4, 8, 8), seed=1)
    result = session.generate(num_steps=20, noise=noise, policy=partial(AdaptivePolicy, threshold=0.1))
    assert result.report.mode == "step"
    assert result.report.nfe == result.report.engine_calls == result.report.plan.count("F") < 20
    plan = Plan(result.report.plan, "reuse")
    assert torch.equal(session.generate(num_steps=20, noise=noise, plan=plan, mode="step").latents, result.latents)
    with pytest.raises(ZeusError, match="got program with a policy"):
        session.generate(num_steps=20, noise=noise, policy=AdaptivePolicy, mode="program")
    with pytest.raises(ZeusError, match="got one beside a policy"):
        session.generate(num_steps=20, noise=noise, policy=AdaptivePolicy, drift_threshold=0.1)
    with pytest.raises(ZeusError, match="policy: got 'sago'; expected one of adaptive, drift, easycache, sada"):
        session.generate(num_steps=20, noise=noise, policy="sago")
