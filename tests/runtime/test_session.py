"""What a trajectory can be asked for: schedules, starts, prompts, seeds; on toys, in both modes."""

import copy
import gc
import pickle
import weakref

import diffusers
import numpy as np
import pytest
import torch
from toy_bundle import DIGITS, GUIDANCE, LABELS, TEXT, denoise, embed, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Guidance, Session, Start, draw_noise
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.conditioning import Sizes
from zeus_trt.zeus_graph import Plan, json_file

NOISE = draw_noise((2, 4, 8, 8), seed=1)
SIGMAS = [float(sigma) for sigma in torch.linspace(14.0, 0.2, 12)] + [0.0]  # Euler wants the end too
FLOW = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def assert_close(got, expected, tolerance=3e-6):
    assert (got - expected).norm() <= tolerance * expected.norm()


def walk(scheduler, timesteps, latents, generator=None):
    """diffusers' own loop of the toy."""
    for t in timesteps:
        scaled = scheduler.scale_model_input(latents, t) if hasattr(scheduler, "scale_model_input") else latents
        output = denoise(scaled, t.float().expand(len(latents)))
        latents = scheduler.step(output, t, latents, **({"generator": generator} if generator else {}))[0]
    return latents


@pytest.mark.parametrize(
    ("scheduler", "schedule"),
    [
        (diffusers.EulerDiscreteScheduler(), {"sigmas": SIGMAS}),
        (diffusers.EulerDiscreteScheduler(), {"timesteps": list(range(960, 0, -80))}),
        (FLOW, {"mu": 0.7}),
        (FLOW, {"mu": 0.7, "sigmas": [1 - i / 12 for i in range(12)]}),
        (diffusers.DPMSolverMultistepScheduler(use_karras_sigmas=True), {}),
    ],
)
def test_schedules_of_ones_own(scheduler, schedule):
    session = make_session(scheduler=scheduler)
    settings = {"num_steps": 12, "noise": NOISE, "schedule": schedule}
    full = session.generate(plan=session.plan(12, 0, schedule=schedule), **settings)
    own = type(scheduler).from_config(scheduler.config)
    own.set_timesteps(**({} if {"sigmas", "timesteps"} & schedule.keys() else {"num_inference_steps": 12}), **schedule)
    assert torch.equal(full.latents, walk(own, own.timesteps, NOISE * getattr(own, "init_noise_sigma", 1.0)))
    plan = session.plan(12, 2, schedule=schedule)
    program, step = (session.generate(plan=plan, mode=mode, **settings) for mode in ("program", "step"))
    assert program.report.nfe < 12
    assert_close(program.latents, step.latents)


def test_a_schedule_of_another_length_is_refused():
    session = make_session()
    for mode in ("program", "step"):
        with pytest.raises(ZeusError, match="num_steps: got 50; expected 12"):
            session.generate(plan=Plan.uniform(12, 2), noise=NOISE, schedule={"sigmas": SIGMAS}, mode=mode)


@pytest.mark.parametrize(
    "name",
    ["EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "HeunDiscreteScheduler", "DDIMScheduler",
     "FlowMatchEulerDiscreteScheduler"],
)  # fmt: skip
def test_image_to_image_begins_as_diffusers_does(name):
    scheduler = getattr(diffusers, name)(**({"clip_sample": False} if name == "DDIMScheduler" else {}))
    session, clean = make_session(scheduler=scheduler), draw_noise((2, 4, 8, 8), seed=5)
    begin = session.begin(20, 0.6)
    order = getattr(scheduler, "order", 1)
    assert begin == 8 * order

    own = type(scheduler).from_config(scheduler.config)
    own.set_timesteps(20)
    timesteps = own.timesteps[begin:]
    if hasattr(own, "set_begin_index"):
        own.set_begin_index(begin)
    if hasattr(own, "scale_noise"):
        latents = own.scale_noise(clean, timesteps[:1], NOISE)
    else:
        latents = own.add_noise(clean, NOISE, timesteps[:1])
    settings = {"num_steps": 20, "noise": NOISE, "start": Start(clean, begin)}
    full = session.generate(plan=session.plan(20, 0, begin=begin), **settings)
    assert torch.equal(full.latents, walk(own, timesteps, latents))
    plan = session.plan(20, 2, begin=begin)
    program, step = (session.generate(plan=plan, mode=mode, **settings) for mode in ("program", "step"))
    assert program.report.nfe == plan.nfe < len(plan) == len(timesteps)
    assert_close(program.latents, step.latents)
    seeded = session.generate(plan=plan, num_steps=20, start=Start(clean, begin), seed=1, batch=2)
    assert torch.equal(seeded.latents, program.latents)


def test_a_start_at_full_strength_keeps_a_trace_of_the_picture():
    session, clean = make_session(), draw_noise((2, 4, 8, 8), seed=5)
    assert session.begin(20, 1.0) == 0
    settings = {"plan": session.plan(20, 2), "num_steps": 20, "noise": NOISE}
    started = session.generate(start=Start(clean), **settings).latents
    assert not torch.equal(started, session.generate(**settings).latents)


def test_starts_between_the_evaluations_of_a_step_are_refused():
    session = make_session(scheduler=diffusers.HeunDiscreteScheduler())
    with pytest.raises(ZeusError, match="begin: got 3; expected a multiple of 2"):
        session.generate(plan=session.plan(20, 0, begin=3), num_steps=20, start=Start(NOISE, 3))
    for strength in (0.0, 0.01, 1.5, float("nan"), True, "1"):
        with pytest.raises(ZeusError, match="strength: got"):
            session.begin(20, strength)


@pytest.mark.parametrize("scheduler", [diffusers.EulerDiscreteScheduler(), diffusers.FlowMatchEulerDiscreteScheduler()])
def test_inpainting_keeps_the_picture_outside_of_the_mask(scheduler):
    session, clean = make_session(scheduler=scheduler), draw_noise((2, 4, 8, 8), seed=5)
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 1
    settings = {"plan": session.plan(20, 2, begin=4), "num_steps": 20, "noise": NOISE}
    result = session.generate(start=Start(clean, 4, mask), **settings)
    assert result.report.mode == "step"
    assert torch.equal(result.latents[..., 4:], clean[..., 4:])
    free = session.generate(start=Start(clean, 4), **settings).latents
    assert not torch.equal(result.latents[..., :4], free[..., :4])
    kept = session.generate(start=Start(clean, 4, torch.ones_like(mask)), **settings).latents
    assert_close(kept, free)  # a mask of ones changes nothing
    with pytest.raises(ZeusError, match="mode: got program with a mask"):
        session.generate(start=Start(clean, 4, mask), mode="program", **settings)


def test_stochastic_solvers_draw_from_the_seed():
    session = make_session(scheduler=diffusers.EulerAncestralDiscreteScheduler())
    plan = session.plan(10, 0)
    settings = {"plan": plan, "num_steps": 10, "start": None}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = session.generate(noise=NOISE, seed=3, **settings).latents
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(session.generate(noise=NOISE, seed=3, **settings).latents, first)
    assert not torch.equal(session.generate(noise=NOISE, seed=4, **settings).latents, first)
    own = diffusers.EulerAncestralDiscreteScheduler()
    own.set_timesteps(10)
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(first, walk(own, own.timesteps, NOISE * own.init_noise_sigma, generator))


def test_rows_with_seeds_of_their_own_do_not_depend_on_the_batch():
    fixed = TensorSpec("sample", "float32", ("batch", 4, 8, 8), "latents")
    for scheduler in (diffusers.EulerDiscreteScheduler(), diffusers.EulerAncestralDiscreteScheduler()):
        session = make_session(latents=fixed, scheduler=scheduler)
        plan = session.plan(10, 2)
        together = session.generate(plan=plan, num_steps=10, seed=[5, 9]).latents
        alone = session.generate(plan=plan, num_steps=10, seed=[9]).latents
        torch.testing.assert_close(together[1:], alone)


def test_every_row_has_its_own_prompt_and_negative_prompt():
    session = make_session(TEXT)
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "guidance_scale": 4.0}
    together = session.generate(
        {"encoder_hidden_states": embed(1)}, noise=NOISE, negative={"encoder_hidden_states": embed(2)}, **settings
    ).latents
    for row in (0, 1):
        alone = session.generate(
            {"encoder_hidden_states": embed(1)[row : row + 1]}, noise=NOISE[row : row + 1],
            negative={"encoder_hidden_states": embed(2)[row : row + 1]}, **settings,
        ).latents  # fmt: skip
        torch.testing.assert_close(together[row : row + 1], alone)
    assert not torch.allclose(together[0], together[1])


def test_channels_that_stay_are_an_input():
    """An inpainting UNet: its graph appends mask and picture to the latents."""
    spec = TensorSpec("sample_constant", "float32", ("batch", 5, "height", "width"), "constant")

    def denoise_nine(sample, timestep, sample_constant):
        return denoise(sample + sample_constant.mean(1, keepdim=True), timestep)

    session = make_session(spec, constant_axis=1, engine=denoise_nine)
    constant = torch.randn(2, 5, 8, 8)
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "noise": NOISE}
    assert session.generate({"sample_constant": constant}, **settings).latents.shape == NOISE.shape
    with pytest.raises(ZeusError, match=r"expected \['sample_constant'\]"):
        session.generate(**settings)
    with pytest.raises(ZeusError, match="sample_constant: got 4 for axis 1; expected 5"):
        session.generate({"sample_constant": constant[:, :4]}, **settings)


def test_a_graph_that_no_solver_can_step_is_refused():
    session = make_session(output_axes=("batch", 6, "height", "width"), unsteppable="it returns six channels")
    with pytest.raises(ZeusError, match="no solver can step, since it returns six channels"):
        session.generate(plan=session.plan(10, 2), num_steps=10, noise=NOISE)


def test_embedded_guidance_is_an_input():
    session = make_session(GUIDANCE, guidance_factor=10.0)
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "noise": NOISE}
    by_scale = session.generate(guidance_scale=3.5, **settings)
    assert by_scale.report.engine_calls == by_scale.report.nfe
    given = session.generate({"guidance": torch.full((2,), 35.0)}, **settings)
    assert torch.equal(by_scale.latents, given.latents)
    assert not torch.equal(by_scale.latents, session.generate(**settings).latents)
    with pytest.raises(ZeusError, match="in an unknown unit"):
        make_session(GUIDANCE).generate(guidance_scale=3.5, **settings)


def test_a_report_adds_up():
    session = make_session(TEXT)
    plan = session.plan(20, 3)
    report = session.generate({"encoder_hidden_states": embed(1)}, plan=plan, num_steps=20, noise=NOISE).report
    assert (report.backend, report.plan, report.nfe, report.engine_calls) == ("function", str(plan), plan.nfe, plan.nfe)
    assert report.speedup_bound == plan.speedup_bound
    assert 0 < report.engine_seconds < report.total_seconds
    assert report.loop_seconds == report.total_seconds - report.engine_seconds
    assert report.drift == ()
    assert repr(session) == "Session('nowhere', function: given)"


def test_masks_may_hold_minus_infinity():
    sizes, minus = Sizes(()), torch.tensor([[0.0, -torch.inf]])
    sizes.check(TensorSpec("encoder_attention_mask", "float32", ("batch", "prompt")), minus)
    for name, tensor in (("encoder_attention_mask", -minus), ("encoder_hidden_states", minus)):
        with pytest.raises(ZeusError, match="got NaN or infinity"):
            sizes.check(TensorSpec(name, "float32", ("batch", "prompt")), tensor)


@pytest.mark.parametrize("mode", ["program", "step"])
def test_gradients_stay_outside(mode):
    network = torch.nn.Conv2d(4, 4, 1)
    session = make_session(TEXT, engine=lambda sample, timestep, encoder_hidden_states: network(sample))
    result = session.generate(
        {"encoder_hidden_states": embed(1).requires_grad_()}, guidance_scale=3.0,
        negative={"encoder_hidden_states": embed(2).requires_grad_()}, plan=session.plan(20, 2, begin=8), num_steps=20,
        noise=NOISE.clone().requires_grad_(), start=Start(NOISE.clone().requires_grad_(), 8), mode=mode,
    )  # fmt: skip
    assert not result.latents.requires_grad
    size = result.latents.numel() * result.latents.element_size()
    assert result.latents.untyped_storage().nbytes() == size  # no view of the loop's memory


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (lambda sample, timestep: (sample,), "denoiser: got tuple from it; expected a tensor"),
        (lambda sample, timestep: sample[:1], r"denoiser: got an output of \(1, 4, 8, 8\); expected \(2, 4, 8, 8\)"),
    ],
)
def test_a_denoiser_that_gives_something_else_is_refused(engine, message):
    session = make_session(engine=engine)
    for mode in ("program", "step"):
        with pytest.raises(ZeusError, match=message):
            session.generate(plan=session.plan(10, 2), num_steps=10, noise=NOISE, mode=mode)


def test_integers_of_any_kind_are_seeds_and_labels():
    session = make_session(LABELS, labels=DIGITS, latents=TensorSpec("sample", "float32", ("batch", 4, 8, 8)))
    settings = {"plan": session.plan(6, 0), "num_steps": 6}
    labels = session.label_images(np.array([3, 4]), 2)
    expected = session.generate(labels, seed=[0, 1], **settings).latents
    for seed in (range(2), np.arange(2), (np.int64(0), 1)):
        assert torch.equal(
            session.generate(session.label_images(torch.tensor([3, 4]), 2), seed=seed, **settings).latents, expected
        )
    with pytest.raises(ZeusError, match="num_images: got 0"):
        session.label_images(None, 0)


def test_the_report_says_why_a_run_goes_step_by_step():
    session = make_session()
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "noise": NOISE}
    seen = []
    for asked, reason in (
        ({"drift_threshold": torch.inf}, "drift is asked for"),
        ({"on_step": seen.append}, "a step at a time is asked for"),
        ({"mode": "step"}, "asked for"),
        ({"start": Start(NOISE, 0, torch.ones(1))}, "a mask is asked for"),
    ):
        assert session.generate(**settings, **asked).report.mode_reason == reason
    with pytest.raises(ZeusError, match="mode: got 'bogus'"):
        session.generate(**settings, mode="bogus", on_step=seen.append)


def test_what_makes_no_session_is_refused():
    bundle = make_session().bundle
    for wrong, message in (
        ({"bundle": 3}, "bundle: got int; expected a folder"),
        ({"engine": "onnxruntime"}, "engine: got str; expected a denoiser; name a backend"),
        ({"engine": denoise, "device": "nonsense"}, "device: got 'nonsense'"),
        ({"engine": denoise, "backend": "tensorrt"}, "engine: got one, and the backend tensorrt"),
        ({"engine": denoise, "cuda_graph": True}, "engine: got one, and cuda_graph"),
    ):
        with pytest.raises(ZeusError, match=message):
            Session(**{"bundle": bundle, **wrong})
    with pytest.raises(ZeusError, match="begin: got 'a'"):
        make_session().plan(10, 2, begin="a")
    with pytest.raises(ZeusError, match="guidance wrap: got NoneType"):
        make_session().generate(
            plan=Plan("F" * 10), num_steps=10, noise=NOISE, guidance=Guidance(wrap=lambda denoiser: None)
        )
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ZeusError, match="session: got it to be copied"):
            copying(make_session())


def test_a_plan_is_asked_for_in_few_words(tmp_path):
    session = make_session()
    json_file.save(tmp_path / "plan.json", Plan.uniform(20, 2).to_json())
    settings = {"num_steps": 20, "noise": NOISE}
    for words, plan in (
        ({}, Plan.uniform(20, 3)),
        ({"ratio": 2}, Plan.uniform(20, 2)),
        ({"ratio": 2, "window": "none"}, Plan.uniform(20, 2, (0.0, 0.0))),
        ({"preset": "turbo", "window": (0.1, 0.2)}, Plan.uniform(20, 4, (0.1, 0.2))),
        ({"ratio": 2, "window": "first:6,last:3"}, Plan("FFFFFFXRFXRFXRFXRFFF")),
        ({"plan": "FF" + "XRF" * 6}, Plan("FF" + "XRF" * 6)),
        ({"plan": "medium"}, Plan.uniform(20, 2)),
        ({"plan": tmp_path / "plan.json"}, Plan.uniform(20, 2)),
    ):
        asked = session.generate(**words, **settings)
        assert asked.report.plan == str(plan)
        assert torch.equal(asked.latents, session.generate(plan=plan, **settings).latents)


@pytest.mark.parametrize(
    "words",
    [
        {"plan": "FFXRF", "ratio": 2},
        {"plan": "FFXRF", "window": "none"},
        {"preset": "fast", "ratio": 2},
        {"preset": "slow"},
        {"ratio": -1},
        {"window": "wide"},
        {"plan": "FFXRF", "num_steps": 9},
    ],
)
def test_words_that_make_no_plan_are_refused(words):
    with pytest.raises(ZeusError, match=r"got .*; expected"):
        make_session().generate(**{"num_steps": 5, "noise": NOISE, **words})


def test_a_start_of_some_strength_knows_where_it_begins():
    session, clean = make_session(), draw_noise((2, 4, 8, 8), seed=5)
    settings = {"num_steps": 20, "ratio": 2, "noise": NOISE}
    begin = session.begin(20, 0.6)
    expected = session.generate(start=Start(clean, begin), **settings)
    got = session.generate(start=Start(clean, strength=0.6), **settings)
    assert torch.equal(got.latents, expected.latents)
    assert len(got.report.plan) == 12
    with pytest.raises(ZeusError, match=r"strength: got 0\.6 beside begin 3"):
        Start(clean, 3, strength=0.6)


def test_a_session_keeps_nothing_of_a_trajectory_that_no_program_can_run():
    session = make_session(scheduler=diffusers.EulerAncestralDiscreteScheduler())
    for _ in range(2):  # the second one reads what is remembered of the first
        noise = NOISE.clone()
        alive = weakref.ref(noise)
        session.generate(num_steps=5, ratio=1, noise=noise)
        del noise
        gc.collect()
        assert alive() is None
