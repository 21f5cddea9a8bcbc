"""Trajectories on a GPU: what they are on a CPU, from the same noise, and without waiting for the device."""

from dataclasses import replace

import diffusers
import pytest
import torch
from toy_bundle import DIGITS, LABELS, SAMPLE, make_manifest, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, EagerEngine, Guidance, Session, Start, draw_noise

NOISE = draw_noise((2, 4, 8, 8), seed=1)
ROWS = {"class_labels": torch.tensor([3, 7])}
EULER, DPM = diffusers.EulerDiscreteScheduler, diffusers.DPMSolverMultistepScheduler
FLOW = diffusers.FlowMatchEulerDiscreteScheduler
FIXED = replace(SAMPLE, axes=("batch", 4, 8, 8))


class Toy(torch.nn.Module):
    """A smooth function of all that it is told, row by row; from its n-th call on, a NaN."""

    def __init__(self, breaks_at=None):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(0.8))
        self.breaks_at, self.seen = breaks_at, []

    def forward(self, sample, timestep, class_labels):
        self.seen.append(sample.clone())
        rows = (timestep / 1000).sin() + (class_labels * 1.3).sin()
        output = torch.tanh(sample.roll(1, 1) * self.gain + rows.to(sample.dtype)[:, None, None, None])
        if self.breaks_at is not None and len(self.seen) > self.breaks_at:
            output[0, 0, 0, 0] = torch.nan
        return output


def open_session(device, scheduler=EULER, dtype="float32", toy=None):
    toy = (toy or Toy()).to(device, getattr(torch, dtype)).eval()
    latents = replace(FIXED, dtype=dtype)
    engine = EagerEngine(toy, make_manifest(LABELS, latents=latents).inputs)
    return make_session(LABELS, latents=latents, engine=engine, scheduler=scheduler(), labels=DIGITS)


def generate(session, ratio, num_steps=12, begin=0, **settings):
    settings = {"noise": NOISE, **settings}
    plan = session.plan(num_steps, ratio, begin=begin)
    return session.generate(ROWS, plan=plan, num_steps=num_steps, **settings)


def distance(got, expected):
    return float((got.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


SETTINGS = {
    "full": (EULER, 0, {}),
    "program": (DPM, 3, {"mode": "program"}),
    "step": (DPM, 3, {"mode": "step"}),
    "flow": (FLOW, 2, {}),
    "heun": (diffusers.HeunDiscreteScheduler, 2, {"mode": "step"}),
    "unipc": (diffusers.UniPCMultistepScheduler, 2, {"mode": "step"}),
    "ddim": (lambda: diffusers.DDIMScheduler(clip_sample=False), 3, {"mode": "step"}),
    "by sigma": (EULER, 3, {"predictor": "lagrange-3@sigma"}),
    "guided": (EULER, 3, {"guidance": Guidance(3.0, interval=(0.2, 0.8), rescale=0.5)}),
    "one by one": (EULER, 3, {"guidance": Guidance(3.0, {"class_labels": torch.tensor([1, 2])}, sequential=True)}),
    "seed": (DPM, 3, {"noise": None, "seed": 5}),
    "seeds": (DPM, 3, {"noise": None, "seed": [5, 9]}),
    "stochastic": (diffusers.EulerAncestralDiscreteScheduler, 2, {"noise": None, "seed": [5, 9]}),
    "drift": (EULER, 3, {"drift_threshold": 0.01}),
    "picture": (EULER, 2, {"start": Start(NOISE / 2, begin=4), "begin": 4}),
    "hole": (EULER, 2, {"start": Start(NOISE / 2, begin=4, mask=(NOISE[:, :1] > 0).float()), "begin": 4}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_as_on_a_cpu(name, device):
    scheduler, ratio, settings = SETTINGS[name]
    expected = generate(open_session("cpu", scheduler), ratio, **settings)
    got = generate(open_session(device, scheduler), ratio, **settings)
    assert got.latents.device == device
    assert got.latents.dtype == torch.float32
    assert distance(got.latents, expected.latents) < 1e-4
    assert (got.report.plan, got.report.nfe, got.report.mode) == (
        expected.report.plan, expected.report.nfe, expected.report.mode
    )  # fmt: skip
    assert got.report.engine_calls == expected.report.engine_calls
    assert 0 < got.report.engine_seconds <= got.report.total_seconds * 1.05  # two clocks
    assert [step for step, _ in got.report.drift] == [step for step, _ in expected.report.drift]
    assert [value for _, value in got.report.drift] == pytest.approx([v for _, v in expected.report.drift], rel=1e-2)


def test_noise_on_the_device_is_taken_as_it_is(device):
    expected = generate(open_session(device), 3).latents
    assert torch.equal(generate(open_session(device), 3, noise=NOISE.to(device)).latents, expected)


@pytest.mark.parametrize("seed", [5, [5, 9]])
def test_a_seed_is_the_same_noise_on_every_device(seed, device):
    toy = Toy()
    generate(open_session(device, FLOW, toy=toy), 3, noise=None, seed=seed)
    assert torch.equal(toy.seen[0].cpu(), draw_noise((2, 4, 8, 8), seed))


def test_a_row_of_a_seed_is_the_same_in_every_batch(device):
    session = open_session(device)
    together = generate(session, 3, noise=None, seed=[5, 9]).latents
    alone = session.generate({"class_labels": torch.tensor([7])}, plan=session.plan(12, 3), num_steps=12, seed=[9])
    torch.testing.assert_close(alone.latents, together[1:])


@pytest.mark.parametrize("make", [EULER, DPM, FLOW])
def test_nothing_skipped_is_the_plain_loop_to_the_bit(make, device):
    scheduler, toy = make(), Toy().to(device).eval()
    scheduler.set_timesteps(12, device=device)
    latents = NOISE.to(device) * getattr(scheduler, "init_noise_sigma", 1.0)
    scale = getattr(scheduler, "scale_model_input", lambda latents, timestep: latents)
    with torch.no_grad():
        for timestep in scheduler.timesteps:
            output = toy(scale(latents, timestep), timestep.float().expand(2), ROWS["class_labels"].to(device))
            latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
    assert torch.equal(generate(open_session(device, make), 0).latents, latents)


def test_a_half_engine_under_a_state_in_float32(device):
    expected = generate(open_session(device), 3).latents
    toy = Toy()
    got = generate(open_session(device, dtype="float16", toy=toy), 3).latents
    assert {sample.dtype for sample in toy.seen} == {torch.float16}
    assert got.dtype == torch.float32
    assert 0 < distance(got, expected) < 1e-2


@pytest.mark.parametrize("mode", ["program", "step"])
def test_the_first_bad_step_is_named(mode, device):
    toy = Toy(breaks_at=9)
    session = open_session(device, toy=toy)
    plan = session.plan(20, 3)
    step = plan.full_steps[9]
    assert step != 9
    with pytest.raises(ZeusError, match=f"model_output: got NaN or infinity at full step {step};"):
        generate(session, 3, num_steps=20, mode=mode)
    # The CPU stops there; a GPU is not waited for before the end.
    assert len(toy.seen) == (10 if device.type == "cpu" else plan.nfe)


@pytest.mark.parametrize(("scheduler", "mode"), [(DPM, "program"), (EULER, "step"), (FLOW, "step")])
@pytest.mark.parametrize("guidance", [Guidance(), Guidance(3.0)], ids=["plain", "guided"])
def test_the_host_waits_for_the_device_at_the_end_only(scheduler, mode, guidance, cuda):
    session = open_session(cuda, scheduler)
    generate(session, 3, guidance=guidance, mode=mode)
    nfe, calls = session.plan(12, 3).nfe, []

    def watch():
        """From the second full step to the last: some schedulers look their first step up on the device."""
        calls.append(1)
        torch.cuda.set_sync_debug_mode("error" if 2 <= len(calls) < nfe else "default")

    try:
        generate(session, 3, guidance=guidance, mode=mode, on_call=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(calls) == nfe


def test_waiting_would_be_seen(cuda):
    """What the test above relies on."""
    value = torch.ones((), device=cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            float(value)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A trained model's bundle and its module; the bundle is what needs ONNX."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from checkout import MODELS

    from zeus_trt.export import export_model, load_pipeline

    folder = tmp_path_factory.mktemp("digits") / "bundle"
    export_model(MODELS / "digits-unet-flow", folder)
    return folder, load_pipeline(MODELS / "digits-unet-flow").denoiser


@pytest.mark.parametrize("ratio", [0, 3])
def test_digits(ratio, digits, device):
    folder, denoiser = digits
    bundle, latents = Bundle.open(folder), []
    for place in ("cpu", device):
        session = Session(bundle, engine=EagerEngine(denoiser.to(place), bundle.manifest.inputs))
        plan, labels = session.plan(12, ratio), session.label_images(None, 4)
        latents.append(session.generate(labels, plan=plan, num_steps=12, guidance_scale=2.0).latents)
    assert latents[1].device == device
    assert distance(latents[1], latents[0]) < 1e-2
