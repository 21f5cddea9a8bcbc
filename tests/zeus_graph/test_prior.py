"""Plans of the prior: made for a solver without a model."""

from dataclasses import replace

import numpy as np
import pytest
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from zeus_trt.calibration.kernel import make_kernel
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, SolverProgram, choose_plan, fold, load_plan, prior, trace
from zeus_trt.zeus_graph.kernel import find_levels, find_parameterization, mix_output, weigh_velocity
from zeus_trt.zeus_graph.plan_choice import lay_plan

SCHEDULERS = {
    "epsilon": DPMSolverMultistepScheduler(),
    "v": EulerDiscreteScheduler(prediction_type="v_prediction"),
    "sample": UniPCMultistepScheduler(prediction_type="sample"),
    "flow": FlowMatchEulerDiscreteScheduler(shift=3.0),
}


def run_gaussian(program: SolverProgram, deviation: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs and inputs (N,) of the exact denoiser of data N(0, deviation^2) from an initial sample of 1, and the
    slopes of its outputs on its inputs."""
    kind = find_parameterization(program)
    signal, noise = find_levels(program)
    variance = (signal * deviation) ** 2 + noise**2
    of_x0, of_eps = signal * deviation**2 / variance, noise / variance
    to_x0, to_eps = mix_output(kind, signal, noise)
    slopes = to_x0 * of_x0 + to_eps * of_eps
    state, outputs, inputs = np.array([[1.0]]), [], []
    for row, matrix, slope in zip(program.input_rows, program.matrices, slopes, strict=True):
        inputs.append((row @ state)[0])
        outputs.append(slope * inputs[-1])
        state = matrix @ np.vstack([state, outputs[-1:]])
    return np.array(outputs), np.array(inputs), slopes


@pytest.mark.parametrize("recorded", SCHEDULERS)
@pytest.mark.parametrize("asked", SCHEDULERS)
def test_a_kernel_has_the_outputs_of_other_parameterizations_and_schedules(recorded, asked):
    """One exact denoiser, recorded with one parameterization, is known in every other one."""
    deviation, program = 0.5, trace(SCHEDULERS[recorded], 50)
    outputs, _inputs, slopes = run_gaussian(program, deviation)
    products = np.outer(outputs, outputs)[None]
    stats = TrajectoryStats(products, slopes[None, None], (0,), {}, 50, initial=np.array([[1.0, *outputs]]))
    kernel = make_kernel("gaussian", program, stats)
    other = trace(SCHEDULERS[asked], 20)
    found, feedback, _roughness = kernel.lay_on(other)
    expected, inputs, expected_slopes = run_gaussian(other, deviation)
    _signal, noise = find_levels(other)
    known = (noise < 0.9) & (noise > 0.2)  # inside of what both schedules reach
    scale = 1 / (inputs[known][0] / np.hypot(*np.array(find_levels(other)) * [[deviation], [1]])[known][0])
    first = outputs[0] / slopes[0] / np.hypot(*np.array(find_levels(program)) * [[deviation], [1]])[0]
    np.testing.assert_allclose(
        np.abs(found[known]).max(axis=1), np.abs(expected[known] * scale * first), rtol=0.05, atol=0.02
    )
    np.testing.assert_allclose(feedback[known], expected_slopes[known], rtol=0.05, atol=0.05)


def test_a_plan_of_the_prior_has_the_budget_folds_and_beats_zeus_on_every_model():
    program = trace(SCHEDULERS["flow"], 16)
    plan, plain = Plan.prior(program, 7), Plan.spread(16, 7)
    assert (len(plan), plan.nfe, plan.source) == (16, 7, "prior")
    assert fold(program, plan).nfe == 7
    assert Plan.prior(trace(SCHEDULERS["flow"], 16), 7) is plan, "searched once for a fingerprint"
    for kernel in prior.load_kernels():
        laid = kernel.lay_on(program)
        assert prior._measure(program, plan, laid) < prior._measure(program, plain, laid), kernel.name


def test_an_unknown_solver_gets_zeus(caplog):
    assert Plan.prior(trace(EDMEulerScheduler(), 12), 6) == Plan.spread(12, 6)
    assert "no prior" in caplog.text
    assert Plan.prior(trace(SCHEDULERS["flow"], 12), 12) == Plan("F" * 12)


def test_a_model_that_does_worse_means_zeus(caplog):
    """On a kernel of constant outputs zeus makes no error, so no plan is better."""
    known = prior.load_kernels()[0]
    constant = replace(known, name="constant", velocity=np.ones_like(known.velocity))
    program = trace(SCHEDULERS["flow"], 12)
    assert prior.make_prior_plan(program, 6, [known, constant]) == Plan.spread(12, 6)
    assert "left out of the prior, its gain over zeus is foreseen as -" in caplog.text


def test_a_plan_says_what_is_foreseen(caplog):
    program = trace(SCHEDULERS["v"], 16)
    with caplog.at_level("INFO"):
        plan = prior.make_prior_plan(program, 7)
    gains = prior.foresee(program, 7, prior.load_kernels())
    assert (set(gains), plan.source) == ({"unet-flow", "dit-flow"}, "prior")  # they were recorded up to noise alone
    assert f"its gain over zeus is foreseen as {min(gains.values()):.1f} to {max(gains.values()):.1f} dB" in caplog.text


def test_noise_levels_beyond_those_recorded_mean_zeus(caplog):
    program = trace(SCHEDULERS["flow"], 12)
    kernels = [kernel for kernel in prior.load_kernels() if kernel.parameterization != "flow"]
    assert prior.make_prior_plan(program, 6, kernels) == Plan.spread(12, 6)
    assert "no model of the prior was recorded at its noise levels" in caplog.text


@pytest.mark.parametrize("recorded", ["flow", "epsilon"])
def test_what_is_like_no_other_output_is_found_and_laid_on_other_solvers(recorded):
    program, rough = trace(SCHEDULERS[recorded], 50), 0.01
    outputs, _inputs, slopes = run_gaussian(program, 0.5)
    products = (np.outer(outputs, outputs) + rough**2 * np.diag(weigh_velocity(program) ** 2))[None]
    stats = TrajectoryStats(products, slopes[None, None], (0,), {}, 50, initial=np.array([[1.0, *outputs]]))
    other = trace(SCHEDULERS["v"], 20)
    found = make_kernel("gaussian", program, stats).lay_on(other).roughness
    _signal, noise = find_levels(other)
    inside = (noise < 0.9) & (noise > 0.2)
    np.testing.assert_allclose(found[inside], rough * np.abs(weigh_velocity(other))[inside], rtol=0.25)


def test_words():
    program = trace(DDIMScheduler(clip_sample=False), 12)
    for words, nfe in (("prior:6", 6), ("prior:fast", Plan.uniform(12, 3).nfe)):
        plan = lay_plan(choose_plan(words), 12, lambda: program)
        assert plan is Plan.prior(program, nfe)
    for wrong in ("prior:", "prior:x", "prior:-3", "prior:²"):
        with pytest.raises(ZeusError, match="expected prior: and a number of full steps"):
            choose_plan(wrong)
    with pytest.raises(ZeusError, match=r"whole number from 3 to 12"):
        lay_plan(choose_plan("prior:21"), 12, lambda: program)
    with pytest.raises(ZeusError, match="made for a solver"):
        load_plan("prior:8", 20)
    with pytest.raises(ZeusError, match="beside prior:8"):
        choose_plan("prior:8", predictor="reuse")


def test_a_stochastic_solver_gets_zeus(caplog):
    def refuse() -> SolverProgram:
        return trace(DDIMScheduler(), 20)  # it clips

    assert lay_plan(choose_plan("prior:8"), 20, refuse) == Plan.spread(20, 8)
    assert "no prior" in caplog.text
