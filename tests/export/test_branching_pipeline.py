"""A pipeline whose denoiser branches on its sizes: what is exported is right, or refused where it would be wrong."""

import dataclasses

import diffusers
import pytest
import torch
from tiny_unets import build_sd, one_level_unet, run_sd

from zeus_trt.errors import ZeusError
from zeus_trt.export import Settings, export_model, verify_bundle
from zeus_trt.export.agreement import turn
from zeus_trt.export.capture import capture
from zeus_trt.runtime import OnnxRuntimeEngine, Session, accelerate

BASE = {"batch": 2, "height": 192, "width": 128, "prompt": 7}
VARIED = {"batch": 3, "height": 256, "width": 192, "prompt": 11}
SETTINGS = Settings(BASE, VARIED, run=run_sd)
UNSEEN = [{"height": 320}, {"height": 256, "width": 256}]


class Branching(diffusers.UNet2DConditionModel):
    """Doubles its output in landscape."""

    def forward(self, sample, timestep, encoder_hidden_states, **kwargs):
        output = super().forward(sample, timestep, encoder_hidden_states, **{**kwargs, "return_dict": False})[0]
        return (output * 2,) if sample.shape[3] > sample.shape[2] else (output,)


class Flat(diffusers.UNet2DConditionModel):
    """Takes a timestep of any form."""

    def forward(self, sample, timestep, encoder_hidden_states, **kwargs):
        return super().forward(sample, torch.as_tensor(timestep).flatten(), encoder_hidden_states, **kwargs)


def make(unet_class):
    torch.manual_seed(0)
    pipeline = build_sd(unet=one_level_unet().eval())
    pipeline.unet.__class__ = unet_class
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    pipeline = make(Branching)
    folder = tmp_path_factory.mktemp("branching") / "bundle"
    return pipeline, export_model(pipeline, folder, settings=SETTINGS, unseen=UNSEEN, steps=())


def test_landscape_is_a_rule_and_no_case(exported):
    _, bundle = exported
    assert [str(relation) for relation in bundle.manifest.relations] == ["width <= height"]
    assert "may vary where width <= height" in bundle.manifest.describe()
    shapes = {record.shape[2:] for record in bundle.manifest.find_graph().verification}
    assert shapes == {(24, 16), (40, 16), (32, 32), (32, 16), (24, 24)}  # and not (16, 24)


def test_session_twin_and_graph_refuse_landscape(exported):
    pipeline, bundle = exported
    engine = OnnxRuntimeEngine(bundle.graph(), num_threads=1)
    session = Session(bundle, engine=engine)
    conditioning = {"encoder_hidden_states": torch.randn(1, 5, 16)}
    plan = session.plan(10, 2)
    session.generate(conditioning, plan=plan, num_steps=10, noise=torch.randn(1, 4, 24, 16))
    words = r"height 16 \(128 pixels\), width 24 \(192 pixels\); expected width <= height"
    with pytest.raises(ZeusError, match=words):
        session.generate(conditioning, plan=plan, num_steps=10, noise=torch.randn(1, 4, 16, 24))
    with pytest.raises(ZeusError, match=words):
        engine(sample=torch.randn(1, 4, 16, 24), timestep=torch.tensor(3.0), **conditioning)
    with accelerate(pipeline, 1, engine=session) as twin, pytest.raises(ZeusError, match=words):
        run_sd(twin, batch=1, height=128, width=192, prompt=5)


def test_verifying_at_a_size_that_is_refused_says_so(exported):
    pipeline, bundle = exported
    with pytest.raises(ZeusError, match="expected width <= height"):
        verify_bundle(bundle, pipeline, settings=SETTINGS, sizes=[(128, 192)])


def test_a_batch_that_guidance_doubles_is_measured_as_the_graph_sees_it(exported):
    _, bundle = exported
    calls = []

    def engine(**inputs):
        calls.append(len(inputs["sample"]))
        return torch.zeros_like(inputs["sample"])

    symbols = tuple(
        dataclasses.replace(symbol, maximum=3) if symbol.name == "batch" else symbol
        for symbol in bundle.manifest.symbols
    )
    limited = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, symbols=symbols))
    session = Session(limited, engine=engine)
    text = {"encoder_hidden_states": torch.randn(2, 5, 16)}
    asked = {"plan": session.plan(10, 2), "num_steps": 10, "noise": torch.randn(2, 4, 24, 16)}
    session.generate(text, **asked)
    assert set(calls) == {2}
    calls.clear()
    with pytest.raises(ZeusError, match="batch: got 4; expected up to 3"):
        session.generate(text, **asked, guidance_scale=3.0, negative=text)
    assert calls == []


def test_orientations_that_no_run_has_are_added():
    assert list(turn(SETTINGS, UNSEEN)) == [{"height": 128, "width": 192}]
    assert list(turn(SETTINGS, [{"width": 320}])) == [{"height": 192, "width": 192}]
    assert list(turn(Settings({"batch": 2}, {}), [])) == []


FORMS = {
    "float": lambda t, batch: float(t), "int": lambda t, batch: int(t), "0-d": lambda t, batch: t.reshape(()),
    "(1,)": lambda t, batch: t.reshape(1), "(batch,)": lambda t, batch: t.expand(batch),
    "(batch, 1)": lambda t, batch: t.expand(batch, 1), "(1, 1)": lambda t, batch: t.reshape(1, 1),
}  # fmt: skip


def run_with(form, extra=None):
    """A loop that passes the timestep in one form."""

    def run(pipeline, *, batch, height, width, prompt):
        generator = torch.Generator().manual_seed(0)
        latents = torch.randn(batch, 4, height // 8, width // 8, generator=generator)
        text = torch.randn(batch, prompt, 16, generator=generator)
        pipeline.scheduler.set_timesteps(3)
        for t in pipeline.scheduler.timesteps:
            more = {extra: t.expand(batch)} if extra else {}
            output = pipeline.unet(latents, form(t, batch), encoder_hidden_states=text, return_dict=False, **more)[0]
            latents = pipeline.scheduler.step(output, t, latents, return_dict=False)[0]

    return run


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_timestep_is_a_row_per_image(form):
    captured = capture(make(Flat), Settings(BASE, VARIED, run=run_with(FORMS[form])))
    timestep = captured.inputs[1]
    assert timestep.axes == (("batch", 1) if form.endswith(", 1)") else ("batch",))
    assert captured.examples[1].shape[0] == 2
    assert captured.examples[1].dtype == torch.float32
    assert timestep.dtype == "float32"
    assert captured.flatten(captured.arguments)["timestep"].shape == captured.examples[1].shape


def test_a_second_time_is_an_input_that_no_solver_gives():
    run = run_with(FORMS["0-d"], extra="class_labels")
    captured = capture(make(diffusers.UNet2DConditionModel), Settings(BASE, VARIED, run=run))
    assert [spec.name for spec in captured.inputs[:2]] == ["sample", "timestep"]
    assert next(spec.axes for spec in captured.inputs if spec.name == "class_labels") == ("batch",)
    assert captured.border.unsteppable == "it reads class_labels at each step"


def test_what_else_changes_is_named():
    def run(pipeline, *, batch, height, width, prompt):
        pipeline.scheduler.set_timesteps(3)
        for step, t in enumerate(pipeline.scheduler.timesteps):
            text = torch.full((batch, prompt, 16), float(step))
            sample = torch.randn(batch, 4, height // 8, width // 8, generator=torch.Generator().manual_seed(step))
            output = pipeline.unet(sample, t, encoder_hidden_states=text, return_dict=False)[0]
            pipeline.scheduler.step(output, t, sample, return_dict=False)

    with pytest.raises(ZeusError, match=r"got sample, .* changing with the step; expected latents and times"):
        capture(make(diffusers.UNet2DConditionModel), Settings(BASE, VARIED, run=run))
