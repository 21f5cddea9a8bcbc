"""What a denoiser says of x0 and of the noise is affine in sample and output, whatever it predicts.

With x = alpha x0 + sigma noise and an output psi: x0 = a x + b psi and noise = c x + d psi. ``read`` has these four
numbers for five parameterizations; here they are held against diffusers' own conversions, and the traced solvers
against them.
"""

import diffusers
import numpy as np
import pytest
import torch

from zeus_trt.zeus_graph import trace

KINDS = ("epsilon", "sample", "v_prediction", "flow_prediction")
EDM_SIGN = {"epsilon": 1.0, "v_prediction": -1.0}
SIGMA_DATA = 0.5
TIMES = (0, 1, 10, 250, 500, 749, 998, 999)


def read(kind: str, alpha: float, sigma: float) -> np.ndarray:
    """((a, b), (c, d)): x0 and noise as rows over (x, psi).

    epsilon: psi = noise. sample: psi = x0. v: psi = alpha noise - sigma x0, alpha^2 + sigma^2 = 1. flow:
    psi = noise - x0, alpha + sigma = 1. edm: psi = F of Karras et al. (2022), alpha = 1, before c_in.
    """
    if kind == "edm":
        norm = np.hypot(sigma, SIGMA_DATA)
        x0 = np.array([(SIGMA_DATA / norm) ** 2, sigma * SIGMA_DATA / norm])
    else:
        x0 = {
            "epsilon": lambda: np.array([1.0, -sigma]) / alpha,
            "sample": lambda: np.array([0.0, 1.0]),
            "v_prediction": lambda: np.array([alpha, -sigma]),
            "flow_prediction": lambda: np.array([1.0, -sigma]) / (alpha + sigma),
        }[kind]()
    return np.array([x0, (np.array([1.0, 0.0]) - alpha * x0) / sigma])


def make_pair():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64).unbind()


def apply(row, sample, output):
    return row[0] * sample + row[1] * output


def find_scales(scheduler, step):
    alpha, sigma = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[step].double())
    return float(alpha), float(sigma)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [*((kind, "dpmsolver++") for kind in KINDS), *((kind, "dpmsolver") for kind in KINDS if kind != "flow_prediction")],
)
def test_dpm_solver_converts_as_the_readouts_at_every_step(kind, algorithm):
    """dpmsolver++ converts to x0, dpmsolver to noise; diffusers has no conversion from flow to noise."""
    scheduler = diffusers.DPMSolverMultistepScheduler(
        prediction_type=kind, algorithm_type=algorithm, use_flow_sigmas=kind == "flow_prediction",
        final_sigmas_type="zero" if algorithm == "dpmsolver++" else "sigma_min",
    )  # fmt: skip
    scheduler.set_timesteps(20)
    sample, output = make_pair()
    for step in range(20):
        scheduler._step_index = step
        row = read(kind, *find_scales(scheduler, step))[int(algorithm == "dpmsolver")]
        found = scheduler.convert_model_output(output, sample=sample)
        torch.testing.assert_close(found, apply(row, sample, output), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("time", TIMES)
def test_ddpm_and_ddim_read_the_same_x0(kind, time):
    sample, output = make_pair()
    for name in ("DDPMScheduler", "DDIMScheduler"):
        scheduler = getattr(diffusers, name)(prediction_type=kind, clip_sample=False)
        scheduler.set_timesteps(1000)
        kept = scheduler.alphas_cumprod[time].double()
        row = read(kind, float(kept.sqrt()), float((1 - kept).sqrt()))[0]
        found = scheduler.step(output, time, sample).pred_original_sample
        torch.testing.assert_close(found, apply(row, sample, output), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("time", TIMES)
def test_the_velocity_of_diffusers_is_read_back(time):
    """v of get_velocity, with the sample of add_noise, gives x0 and noise again."""
    x0, noise = make_pair()
    scheduler, at = diffusers.DDPMScheduler(), torch.tensor([time])
    kept = scheduler.alphas_cumprod[time].double()
    sample, velocity = scheduler.add_noise(x0, noise, at), scheduler.get_velocity(x0, noise, at)
    rows = read("v_prediction", float(kept.sqrt()), float((1 - kept).sqrt()))
    for row, expected in zip(rows, (x0, noise), strict=True):
        torch.testing.assert_close(apply(row, sample, velocity), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", EDM_SIGN)
@pytest.mark.parametrize("name", ["EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"])
def test_edm_preconditions_as_the_readout(name, kind):
    """diffusers' v_prediction differs by the sign of the output."""
    scheduler = getattr(diffusers, name)(prediction_type=kind, sigma_data=SIGMA_DATA)
    scheduler.set_timesteps(20)
    sample, output = make_pair()
    for sigma in scheduler.sigmas[:20].double():
        row = read("edm", 1.0, float(sigma))[0]
        found = scheduler.precondition_outputs(sample, output, sigma)
        torch.testing.assert_close(found, apply(row, sample, EDM_SIGN[kind] * output))


def test_flow_matching_mixes_sample_and_noise_as_the_readout():
    """scale_noise of diffusers makes x; noise - x0 as output gives both again, at every step."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(20)
    x0, noise = make_pair()
    for time, sigma in zip(scheduler.timesteps, scheduler.sigmas[:20], strict=True):
        sample = scheduler.scale_noise(x0[None], time[None], noise[None])[0]
        rows = read("flow_prediction", 1 - float(sigma), float(sigma))
        for row, expected in zip(rows, (x0, noise), strict=True):
            torch.testing.assert_close(apply(row, sample, noise - x0), expected, rtol=1e-5, atol=1e-5)


def make_solver(kind):
    """A first-order solver of the kind, and its (alpha, sigma) at every sigma."""
    if kind == "flow_prediction":
        return diffusers.FlowMatchEulerDiscreteScheduler(), lambda sigma: (1 - sigma, sigma)
    if kind == "edm":
        return diffusers.EDMEulerScheduler(sigma_data=SIGMA_DATA), lambda sigma: (1.0, sigma)
    solver = diffusers.DPMSolverMultistepScheduler(prediction_type=kind, solver_order=1, final_sigmas_type="zero")
    return solver, lambda sigma: (1 / np.hypot(1, sigma), sigma / np.hypot(1, sigma))


@pytest.mark.parametrize("kind", [*KINDS, "edm"])
def test_traced_first_order_solvers_step_by_the_readouts(kind):
    """Every step of the traced solver is x' = alpha' x0 + sigma' noise, with both read from (x, psi)."""
    scheduler, scale = make_solver(kind)
    program = trace(scheduler, 12)
    assert program.num_latents == 1
    sigmas = [*program.sigmas, 0.0]
    for step, matrix in enumerate(program.matrices):
        x0, noise = read(kind, *scale(sigmas[step]))
        alpha, sigma = scale(sigmas[step + 1])
        np.testing.assert_allclose(matrix[0], alpha * x0 + sigma * noise, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [*KINDS, "edm"])
def test_a_readout_keeps_the_sample(kind):
    """alpha x0 + sigma noise is x again, so an error in psi moves x0 and noise against each other."""
    sigma = 0.3
    alpha = {"flow_prediction": 1 - sigma, "edm": 1.0}.get(kind, np.sqrt(1 - sigma**2))
    assert np.array([alpha, sigma]) @ read(kind, alpha, sigma) == pytest.approx([1.0, 0.0], abs=1e-15)
