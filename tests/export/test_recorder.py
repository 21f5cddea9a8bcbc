"""Recording a pipeline: what is found, what is refused, and that nothing is left behind."""

import diffusers
import pytest
import torch
from pipelines import FAMILIES
from tiny_images import run_flux
from tiny_unets import run_sd, run_sdxl
from tiny_videos import build_wan

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import capture
from zeus_trt.export.flat import trace_flat
from zeus_trt.export.recorder import record_calls
from zeus_trt.export.runs import Settings, record, summarize
from zeus_trt.runtime.pipelines.rows import Rows

SD, WAN = FAMILIES["sd15"], FAMILIES["wan"]


@pytest.fixture
def sd():
    return SD.make()


def run_base(pipeline):
    return SD.run(pipeline, **SD.base)


def snapshot(pipeline):
    """Everything of a pipeline that recording could change."""
    parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return (
        dict(vars(pipeline)),
        dict(vars(pipeline.scheduler)),
        type(pipeline.scheduler),
        [(type(module), module.training, dict(vars(module))) for part in parts for module in part.modules()],
        torch.get_rng_state().tolist(),
    )


def test_calls_have_steps_branches_and_copies(sd):
    calls = record_calls(sd, "unet", run_base, steps=2)
    assert [(call.step, call.branch) for call in calls] == [(0, 0), (1, 0)]
    first, second = (call.arguments for call in calls)
    assert list(first)[:3] == ["sample", "timestep", "encoder_hidden_states"]
    assert first["sample"].shape == calls[0].output_shape == (4, 4, 8, 12)
    assert first["timestep"] > second["timestep"]
    assert not torch.equal(first["sample"], second["sample"])


def test_guidance_with_one_call_per_branch():
    wan = WAN.make()
    calls = record_calls(wan, "transformer", lambda proxy: WAN.run(proxy, **WAN.base), steps=3)
    assert [(call.step, call.branch) for call in calls] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert capture(wan, WAN.settings).guidance == "sequential"


def test_a_branch_that_leaves_an_argument_out_has_its_default(sd):
    def run(pipeline):
        pipeline.scheduler.set_timesteps(3)
        latents, text = torch.ones(2, 4, 8, 8), torch.ones(2, 7, 16)
        for time in pipeline.scheduler.timesteps:
            pipeline.unet(latents, time, text, timestep_cond=None)
            output = pipeline.unet(latents, time, encoder_hidden_states=text, return_dict=False)[0]
            latents = pipeline.scheduler.step(output, time, latents).prev_sample

    calls = record_calls(sd, "unet", run, steps=2)
    rest = [{name: call.arguments[name] for name in ("timestep_cond", "return_dict")} for call in calls]
    assert rest == [{"timestep_cond": None, "return_dict": value} for value in (True, False)] * 2


@pytest.mark.parametrize("scheduler", [diffusers.PNDMScheduler(skip_prk_steps=True), diffusers.HeunDiscreteScheduler()])
def test_steps_are_those_of_the_solver_where_timesteps_repeat(sd, scheduler):
    sd.scheduler = scheduler
    calls = record_calls(sd, "unet", run_base, steps=5)
    assert [call.step for call in calls] == list(range(len(calls)))
    assert len({float(call.arguments["timestep"]) for call in calls}) < len(calls)


def test_it_stops_before_the_decoder(sd):
    def run(pipeline, **setting):  # three steps and a picture, of a pipeline that has no decoder
        pipeline(prompt_embeds=torch.zeros(2, 7, 16), negative_prompt_embeds=torch.zeros(2, 7, 16), **setting)

    assert summarize(
        record(sd, "unet", Settings({"height": 64, "width": 96}, {}, run=run)), Rows()
    ).changing.keys() == {
        "sample",
        "timestep",
    }


def test_everything_is_as_it_was(sd):
    def generate():
        return SD.run(sd, **SD.base, generator=torch.Generator().manual_seed(3)).images

    expected, before = generate(), snapshot(sd)
    capture(sd, SD.settings)
    assert snapshot(sd)[2:] == before[2:]
    assert {key: id(value) for key, value in vars(sd).items()} == {key: id(value) for key, value in before[0].items()}
    assert vars(sd.scheduler).keys() == before[1].keys()
    torch.testing.assert_close(generate(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_everything_is_as_it_was_after_a_fault(sd, fault):
    before = snapshot(sd)

    def fail(*_):
        raise fault("in the pipeline")

    with pytest.raises(fault, match="in the pipeline"):
        record_calls(sd, "unet", lambda proxy: SD.run(proxy, **SD.base, callback_on_step_end=fail))
    assert snapshot(sd)[2:] == before[2:]
    assert vars(sd) == before[0]


def test_a_forward_that_a_hook_replaced_stays_where_it_is(sd):
    def forward(*args, **kwargs):  # as accelerate does it; it would move weights
        raise AssertionError("the hook ran")

    sd.unet.forward = forward
    assert capture(sd, SD.settings).inputs[0].name == "sample"
    assert sd.unet.forward is forward


def test_a_compiled_denoiser(sd):
    sd.unet = torch.compile(sd.unet, backend="eager")
    compiled = type(sd.unet)
    assert [spec.name for spec in capture(sd, SD.settings).inputs] == ["sample", "timestep", "encoder_hidden_states"]
    assert type(sd.unet) is compiled


def test_another_pipeline_with_the_same_denoiser_runs_for_real(sd):
    other = diffusers.StableDiffusionPipeline.from_pipe(sd)
    other.set_progress_bar_config(disable=True)
    expected = SD.run(other, **SD.base, generator=torch.Generator().manual_seed(3)).images
    nested = []

    def run(pipeline, **setting):
        nested.append(SD.run(other, **setting, generator=torch.Generator().manual_seed(3)).images)
        SD.run(pipeline, **setting)

    calls = record_calls(sd, "unet", lambda proxy: run(proxy, **SD.base))
    assert [call.step for call in calls] == [0, 1, 2]
    torch.testing.assert_close(nested[0], expected, rtol=0, atol=0)


def test_roles_and_axes_of_flux():
    captured = capture(FAMILIES["flux"].make(), FAMILIES["flux"].settings)
    assert {spec.name: (spec.role, spec.axes) for spec in captured.inputs} == {
        "hidden_states": ("latents", ("batch", "tokens", 16)),
        "timestep": ("timestep", ("batch",)),
        "encoder_hidden_states": ("conditioning", ("batch", "prompt", 16)),
        "pooled_projections": ("conditioning", ("batch", 16)),
        "txt_ids": ("size", ("prompt", 3)),
        "img_ids": ("size", ("tokens", 3)),
        "guidance": ("fixed", ("batch",)),
    }


def test_the_solvers_part_of_the_latents():
    captured = capture(FAMILIES["inpaint"].make(), FAMILIES["inpaint"].settings)
    latents, _, constant, *_ = captured.inputs
    assert latents.axes == captured.output_axes == ("batch", 4, "height", "width")
    assert (constant.role, constant.axes) == ("constant", ("batch", 5, "height", "width"))
    assert not any(example._is_view() for example in captured.examples)  # torch traces the base of a view too


def test_inputs_are_float32_in_a_half_precision_model(sd):
    captured = capture(sd.to(torch.float16), SD.settings)
    assert {example.dtype for example in captured.examples} == {torch.float32}
    assert {spec.dtype for spec in captured.inputs} == {"float32"}


def test_names_paths_and_integers_of_nested_arguments():
    sdxl = capture(FAMILIES["sdxl"].make(), FAMILIES["sdxl"].settings)
    assert sdxl.arguments.paths["text_embeds"] == "added_cond_kwargs.text_embeds"
    ltx = capture(FAMILIES["ltx"].make(), FAMILIES["ltx"].settings)
    assert {spec.name: spec.value for spec in ltx.inputs if spec.value} == {
        "num_frames": "frames", "height": "height", "width": "width",
    }  # fmt: skip
    assert ltx.constants["rope_interpolation_scale.1"] == 32
    video = capture(FAMILIES["cogvideox"].make(), FAMILIES["cogvideox"].settings)
    assert [spec.name for spec in video.inputs[3:]] == ["image_rotary_emb.0", "image_rotary_emb.1"]
    assert next(symbol for symbol in video.symbols if symbol.name == "tokens").factors == ("height", "width", "frames")


def test_the_arguments_of_the_pipeline_itself_are_settings_too(sd):
    prompts = {name: torch.randn(2, 7, 16) for name in ("prompt_embeds", "negative_prompt_embeds")}
    settings = Settings(
        {**prompts, "height": 64, "width": 96},
        {"num_images_per_prompt": 2, "height": 128},
        content={"prompt_embeds": torch.randn(2, 7, 16)},
    )
    assert [(spec.name, spec.axes, spec.role) for spec in capture(sd, settings).inputs] == [
        ("sample", ("batch", 4, "height", 12), "latents"),
        ("timestep", ("batch",), "timestep"),
        ("encoder_hidden_states", ("batch", 7, 16), "conditioning"),
    ]


def build_two_denoisers():
    return build_wan(transformer_2=build_wan().transformer, boundary_ratio=0.9)


def test_two_denoisers_need_a_name():
    wan = build_two_denoisers()
    wan.set_progress_bar_config(disable=True)
    with pytest.raises(ZeusError, match="several denoisers; expected one of transformer, transformer_2"):
        capture(wan, WAN.settings)
    assert capture(wan, WAN.settings, "transformer_2").component == "transformer_2"


def test_wrong_components_are_refused(sd):
    with pytest.raises(ZeusError, match="component: got transformer; expected one of unet"):
        capture(sd, SD.settings, "transformer")
    with pytest.raises(ZeusError, match="got a dict with no components; expected a diffusers pipeline"):
        capture({}, SD.settings, "unet")
    inpaint = FAMILIES["inpaint"].make()
    with pytest.raises(ZeusError, match="component: got safety_checker"):
        capture(inpaint, SD.settings, "safety_checker")


def test_a_call_with_something_else_is_named():
    flux = FAMILIES["flux"].make()

    def run(pipeline, **setting):
        run_flux(pipeline, **setting, joint_attention_kwargs={"store": object()})

    with pytest.raises(ZeusError, match=r"joint_attention_kwargs.store: got a object; expected a tensor"):
        capture(flux, Settings(FAMILIES["flux"].base, {}, run=run))


def test_calls_that_differ_are_named():
    def run(pipeline, **setting):  # skip-layer guidance makes a third call, without the last layers
        run_sdxl(pipeline, **setting, skip_guidance_layers=[1], skip_layer_guidance_stop=1.0)

    with pytest.raises(ZeusError, match=r"skip_layers"):
        capture(FAMILIES["sd3"].make(), Settings(FAMILIES["sd3"].base, {}, run=run))


def test_a_size_that_the_pipeline_refuses(sd):
    with pytest.raises(ZeusError, match=r"settings: got .*height 65.* which the pipeline refuses \(.*divisible by 8"):
        capture(sd, Settings({**SD.base, "height": 65}, {}, run=run_sd))


def test_a_base_run_of_size_one_is_refused(sd):
    def run(pipeline, **setting):
        run_sd(pipeline, **setting, guidance_scale=1.0)

    with pytest.raises(ZeusError, match="batch is 1; expected 2 or more"):
        capture(sd, Settings({**SD.base, "batch": 1}, {"batch": 2}, run=run))


class RowByRow(diffusers.DiTTransformer2DModel):
    """A model whose code depends on the number of rows."""

    def forward(self, hidden_states, **kwargs):
        return super().forward(torch.stack(list(hidden_states)), **kwargs)


def test_a_size_that_the_models_code_fixes_is_named():
    dit = FAMILIES["dit"].make()
    dit.transformer.__class__ = RowByRow
    captured = capture(dit, FAMILIES["dit"].settings)
    with pytest.raises(
        ZeusError, match=r"got RowByRow, whose code fixes batch at [0-9] \(test_recorder.py:[0-9]+\); expected"
    ):
        trace_flat(captured)
