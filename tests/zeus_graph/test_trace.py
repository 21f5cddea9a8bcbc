import copy
import random
import threading
from functools import partial

import diffusers.schedulers as ds
import numpy as np
import pytest
import torch
from solver_loops import FLOAT32, SD, SOLVERS, noise, relative_error, run_program, run_steps, toy_denoiser

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.trace import UntraceableError, trace

DENOISE = toy_denoiser()

EULER = partial(ds.EulerDiscreteScheduler, **SD)
DDIM = partial(ds.DDIMScheduler, **SD, clip_sample=False)
COG = partial(ds.CogVideoXDDIMScheduler, **SD)
DPM = partial(ds.DPMSolverMultistepScheduler, **SD)
SINGLE = partial(ds.DPMSolverSinglestepScheduler, **SD)
INVERSE = partial(ds.DPMSolverMultistepInverseScheduler, **SD)
UNIPC = partial(ds.UniPCMultistepScheduler, **SD)
DEIS = partial(ds.DEISMultistepScheduler, **SD)
LMS = partial(ds.LMSDiscreteScheduler, **SD)
PNDM = partial(ds.PNDMScheduler, **SD, skip_prk_steps=True)
HEUN = partial(ds.HeunDiscreteScheduler, **SD)
KDPM2 = partial(ds.KDPM2DiscreteScheduler, **SD)
FLOW = ds.FlowMatchEulerDiscreteScheduler

SPACED = {
    "linspace leading trailing": {"Euler": EULER, "DDIM": DDIM, "CogVideoX DDIM": COG, "DPM": DPM, "inverse": INVERSE}
    | {"UniPC": UNIPC, "DEIS": DEIS, "LMS": LMS, "PNDM": PNDM, "Heun": HEUN, "KDPM2": KDPM2},
    "leading trailing": {"DDIM inverse": partial(ds.DDIMInverseScheduler, **SD, clip_sample=False)},
}
RESIGMAD = {"Euler": EULER, "DPM": DPM, "inverse": INVERSE, "singlestep": SINGLE, "UniPC": UNIPC, "DEIS": DEIS}
RESIGMAD |= {"LMS": LMS, "Heun": HEUN, "KDPM2": KDPM2}
CUSTOM_SIGMAS = [14.0, 9.0, 5.0, 3.0, 2.0, 1.2, 0.7, 0.3, 0.1, 0.03]
CUSTOM_TIMESTEPS = [990, 850, 700, 580, 470, 350, 240, 130, 60, 10]
FLOW_SIGMAS = np.linspace(1.0, 0.1, 10).tolist()


def _options():
    for spacings, makers in SPACED.items():
        for spacing in spacings.split():
            for name, make in makers.items():
                yield f"{name} {spacing}", partial(make, timestep_spacing=spacing), {}
    for sigmas in ("karras", "exponential", "beta"):
        for name, make in RESIGMAD.items():
            yield f"{name} {sigmas}", partial(make, **{f"use_{sigmas}_sigmas": True}), {}
    for schedule in ("karras", "exponential"):
        yield f"EDM Euler {schedule}", partial(ds.EDMEulerScheduler, sigma_schedule=schedule), {}
        yield f"EDM DPM++ {schedule}", partial(ds.EDMDPMSolverMultistepScheduler, sigma_schedule=schedule), {}
    for name, make in {"Euler": EULER, "DPM": DPM, "UniPC": UNIPC, "DDIM": DDIM, "CogVideoX DDIM": COG}.items():
        v = {"prediction_type": "v_prediction"}
        yield f"{name} v", partial(make, **v), {}
        yield f"{name} zero snr", partial(make, **v, rescale_betas_zero_snr=True, timestep_spacing="trailing"), {}
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
    for name, make in {"DPM": DPM, "singlestep": SINGLE, "UniPC": UNIPC, "DEIS": DEIS}.items():
        yield f"{name} flow", partial(make, **flow, flow_shift=5.0), {}
        yield f"{name} sample", partial(make, prediction_type="sample"), {}
        dynamic = partial(make, **flow, use_dynamic_shifting=True, time_shift_type="exponential")
        yield f"{name} flow, dynamic shift", dynamic, {"mu": 1.15}
    yield "DPM order 3, all at full order", partial(DPM, solver_order=3, lower_order_final=False), {}
    yield "DPM euler at final", partial(DPM, euler_at_final=True), {}
    yield "DPM lu lambdas", partial(DPM, use_lu_lambdas=True), {}
    yield "DPM to sigma_min", partial(DPM, final_sigmas_type="sigma_min"), {}
    yield "UniPC without corrector", partial(UNIPC, disable_corrector=[0, 1, 2, 3]), {}
    yield "UniPC noise", partial(UNIPC, predict_x0=False, final_sigmas_type="sigma_min"), {}
    yield "UniPC with another predictor", lambda: UNIPC(solver_p=DEIS()), {}
    yield "Euler continuous", partial(EULER, timestep_type="continuous", prediction_type="v_prediction"), {}
    yield "flow shift", partial(FLOW, shift=3.0), {}
    yield "flow shift, terminal", partial(FLOW, shift=3.0, shift_terminal=0.1), {}
    yield "flow inverted", partial(FLOW, invert_sigmas=True), {}
    for kind in ("exponential", "linear"):
        yield f"flow dynamic {kind}", partial(FLOW, use_dynamic_shifting=True, time_shift_type=kind), {"mu": 1.15}
    for sigmas in ("karras", "exponential", "beta"):
        yield f"flow {sigmas}", partial(FLOW, **{f"use_{sigmas}_sigmas": True}), {}
    yield "flow Heun shift", partial(ds.FlowMatchHeunDiscreteScheduler, shift=3.0), {}
    yield "flow sigmas", FLOW, {"sigmas": FLOW_SIGMAS}
    yield "flow sigmas and mu", partial(FLOW, use_dynamic_shifting=True), {"sigmas": FLOW_SIGMAS, "mu": 0.9}
    yield "flow map sigmas", ds.FlowMapEulerDiscreteScheduler, {"sigmas": FLOW_SIGMAS}
    yield "UniPC flow sigmas", partial(UNIPC, **flow), {"sigmas": np.array(FLOW_SIGMAS)}
    yield "Euler sigmas", EULER, {"sigmas": [*CUSTOM_SIGMAS, 0.0]}
    yield "EDM Euler sigmas", ds.EDMEulerScheduler, {"sigmas": torch.linspace(0, 1, 10) ** 2}  # its ramp
    for name, make in {"Euler": EULER, "DPM": DPM, "singlestep": SINGLE, "Heun": HEUN}.items():
        yield f"{name} timesteps", make, {"timesteps": CUSTOM_TIMESTEPS}


OPTIONS = {name: (make, schedule) for name, make, schedule in _options()}


def check(make, num_steps, ratio=2, begin=0, **schedule):
    """Asserts that program mode equals step mode; returns the error."""
    solver = trace(make(), num_steps, begin=begin, **schedule)
    plan = Plan.uniform(solver.num_evaluations, ratio)
    start = noise() * solver.init_noise_sigma
    expected = run_steps(make(), num_steps, DENOISE, start, plan, begin=begin, **schedule)
    error = relative_error(run_program(fold(solver, plan), DENOISE, start), expected)
    assert error < FLOAT32, f"{error:.1e}"
    return error


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    make, schedule = OPTIONS[name]
    check(make, 10, **schedule)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [4, 20, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name, (_, s) in OPTIONS.items() if not {"sigmas", "timesteps"} & set(s)])
def test_options_at_other_lengths(name, num_steps):
    make, schedule = OPTIONS[name]
    if name == "inverse exponential" and num_steps > 4:  # its timesteps repeat, and then its own loop fails
        with pytest.raises(UntraceableError, match="IndexError"):
            trace(make(), num_steps)
        return
    for ratio in (0, 2, 3, 4):
        check(make, num_steps, ratio, **schedule)


@pytest.mark.parametrize("begin", [6, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_start_in_the_middle(name, begin):
    make, tolerance = SOLVERS[name]
    assert check(make, 12, begin=begin) < tolerance


@pytest.mark.parametrize("name", SOLVERS)
def test_the_program_knows_its_schedule(name):
    scheduler = SOLVERS[name][0]()
    solver = trace(scheduler, 10)
    scheduler.set_timesteps(10)
    assert solver.timesteps == tuple(float(t) for t in scheduler.timesteps)
    assert solver.scheduler == type(scheduler).__name__
    assert solver.prediction_type == scheduler.config.get("prediction_type")
    assert (solver.sigmas is None) == (name == "IPNDM")
    if name == "DDIM":
        alphas = scheduler.alphas_cumprod[scheduler.timesteps].double()
        assert solver.sigmas == pytest.approx(((1 - alphas) / alphas).sqrt().tolist(), rel=1e-5)
    if name == "KDPM2":  # its list of sigmas repeats where its timesteps do not
        assert len(set(solver.sigmas)) == solver.num_evaluations
    if hasattr(scheduler, "init_noise_sigma"):
        assert solver.init_noise_sigma == float(scheduler.init_noise_sigma)


def test_history_that_only_grows_is_pruned():
    assert trace(ds.IPNDMScheduler(), 50).num_latents == 4
    assert trace(SOLVERS["UniPC to zero 2"][0](), 50).num_latents == 3


REFUSED = {
    "Euler ancestral": (ds.EulerAncestralDiscreteScheduler, "stochastic.*evaluation 0"),
    "KDPM2 ancestral": (ds.KDPM2AncestralDiscreteScheduler, "stochastic.*evaluation 1"),
    "DPM++ SDE": (partial(DPM, algorithm_type="sde-dpmsolver++"), "stochastic"),
    "singlestep SDE": (partial(SINGLE, algorithm_type="sde-dpmsolver++"), "stochastic"),
    "LCM": (ds.LCMScheduler, "stochastic"),
    "TCD": (ds.TCDScheduler, "stochastic"),
    "DDPM": (ds.DDPMScheduler, "stochastic"),
    "UnCLIP": (ds.UnCLIPScheduler, "stochastic"),
    "flow LCM": (ds.FlowMatchLCMScheduler, "stochastic"),
    "flow, stochastic": (partial(FLOW, stochastic_sampling=True), "stochastic"),
    "DDIM, clipping": (partial(ds.DDIMScheduler, clip_sample=True), "nonlinear.*clipping"),
    "DDIM, wide clipping": (partial(ds.DDIMScheduler, clip_sample=True, clip_sample_range=50.0), "nonlinear"),
    "DDIM, thresholding": (partial(ds.DDIMScheduler, clip_sample=False, thresholding=True), "nonlinear"),
    "DPM, thresholding": (partial(DPM, thresholding=True), "nonlinear.*thresholding"),
    "UniPC, thresholding": (partial(UNIPC, thresholding=True), "nonlinear"),
    "CogVideoX DPM": (ds.CogVideoXDPMScheduler, "timestep_back.*bare sample"),
    "UniPC bh1 to zero": (partial(UNIPC, solver_type="bh1"), "not finite.*evaluation 9"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_why(name):
    make, reason = REFUSED[name]
    with pytest.raises(UntraceableError, match=reason) as caught:
        trace(make(), 10)
    assert "step mode" in str(caught.value)


class Solver:
    """A scheduler outside diffusers: x + o / 4, spoilt by ``spoil``."""

    def __init__(self, spoil):
        self.spoil, self.history = spoil, []

    def set_timesteps(self, num_inference_steps):
        self.timesteps = torch.arange(num_inference_steps, 0, -1)

    def step(self, output, timestep, sample):
        result = (self.spoil(self, sample + output / 4, int(timestep)),)
        self.history = [output, {"nested": (sample,)}]
        return result


GENERATOR = np.random.default_rng(0)  # random numbers that no global state shows
SPOILT = {
    "constant": (lambda self, x, t: x + 1.0, "neither sample nor model output.*at evaluation 0"),
    "affine late": (lambda self, x, t: x + (t == 3), "neither sample nor model output.*at evaluation 5"),
    "own random factor": (lambda self, x, t: x * GENERATOR.random(), "stochastic"),
    "global numpy": (lambda self, x, t: x * np.random.rand(), "stochastic"),
    "global python": (lambda self, x, t: x * random.random(), "stochastic"),
    "global torch": (lambda self, x, t: x + torch.randn(x.shape), "noise, at evaluation 0"),
    "not additive": (lambda self, x, t: x.abs(), "depends on its data"),
    "normalised": (lambda self, x, t: x / x.norm(dim=1, keepdim=True), "nonlinear"),
    "other shape": (lambda self, x, t: x[:, :1], "another shape"),
    "infinite": (lambda self, x, t: x / (t - 4), "not finite.*evaluation 4"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_properties_are_probed_not_named(name):
    spoil, reason = SPOILT[name]
    with pytest.raises(UntraceableError, match=reason):
        trace(Solver(spoil), 8)


def test_a_scheduler_from_anywhere_and_history_of_any_nesting():
    def momentum(self, x, t):
        return x + 0.1 * self.history[0] - 0.2 * self.history[1]["nested"][0] if self.history else x

    solver = trace(Solver(momentum), 8)
    assert solver.num_latents == 3
    assert solver.matrices[2][0] == pytest.approx([1.0, 0.1, -0.2, 0.25])
    # After the first step the sample before it is the sample less a quarter of the output.
    assert solver.matrices[1][0] == pytest.approx([0.8, 0.15, 0.25])
    assert solver.prediction_type is None
    assert solver.sigmas is None
    assert solver.init_noise_sigma == 1.0


@pytest.mark.parametrize("name", ["Euler", "PNDM", "Heun", "UniPC to zero 3", "dpmsolver++ 2 midpoint multistep"])
def test_the_scheduler_and_the_random_states_stay_as_they_are(name):
    scheduler = SOLVERS[name][0]()
    scheduler.set_timesteps(7)
    scheduler.step(noise(), scheduler.timesteps[0], noise())
    kept = copy.deepcopy(vars(scheduler))
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    program = trace(scheduler, 10)
    with pytest.raises(UntraceableError):
        trace(ds.EulerAncestralDiscreteScheduler(), 10)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert same(vars(scheduler), kept)
    assert program.fingerprint == trace(SOLVERS[name][0](), 10).fingerprint


def same(left, right):
    if isinstance(left, (torch.Tensor, np.ndarray)):
        return np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_wrong_arguments():
    with pytest.raises(ZeusError, match=r"set_timesteps: got .*nonsense.*TypeError"):
        trace(EULER(), 10, nonsense=1)
    with pytest.raises(ZeusError, match=r"set_timesteps: got .*mu"):
        trace(FLOW(use_dynamic_shifting=True), 10)
    with pytest.raises(ZeusError, match="timesteps that are not finite"):
        trace(ds.EDMEulerScheduler(), 10, sigmas=torch.tensor(CUSTOM_SIGMAS))  # it takes a ramp from 0 to 1
    with pytest.raises(ZeusError, match=r"begin: got 10; expected 0\.\.9"):
        trace(EULER(), 10, begin=10)
    with pytest.raises(ZeusError, match="num_steps: got 12; expected 10"):
        trace(EULER(), 12, timesteps=CUSTOM_TIMESTEPS)
    with pytest.raises(ZeusError, match="without step"):
        trace(object(), 10)


def test_every_scheduler_of_diffusers_is_traced_or_refused():
    traced = set()
    for name in (name for name in dir(ds) if name.endswith("Scheduler")):
        try:
            scheduler = getattr(ds, name)()
        except (TypeError, ImportError):  # needs arguments, or a library that is not installed
            continue
        try:
            trace(scheduler, 10)
            traced.add(name)
        except ZeusError:
            pass
    assert traced >= {type(make()).__name__ for make, _ in SOLVERS.values()} - {"DDIMScheduler", "DDIMInverseScheduler"}


def test_random_numbers_of_other_threads_do_not_disturb():
    expected, stop = trace(DPM(), 10).fingerprint, threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(8), np.random.rand(), random.random()

    other = threading.Thread(target=draw)
    other.start()
    try:
        found = {trace(DPM(), 10).fingerprint for _ in range(10)}
    finally:
        stop.set()
        other.join()
    assert found == {expected}
