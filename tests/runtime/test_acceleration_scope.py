"""accelerate(): what is done to a twin beside calling it, and loops that are no single one."""

import threading

import diffusers
import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.runtime import Session, accelerate
from zeus_trt.runtime.pipelines.module_state import read_adapters
from zeus_trt.runtime.pipelines.run import PipelineRun
from zeus_trt.zeus_graph import Plan, Predictor

EMBEDS = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))
ASKED = {"prompt_embeds": EMBEDS[:1], "negative_prompt_embeds": EMBEDS[1:], "height": 64, "width": 64}
INPUTS = torch.ones(1, 4, 8, 8), 500.0, EMBEDS[:1]


def make(scheduler=None):
    pipeline = FAMILIES["sd15"].make()
    pipeline.scheduler = scheduler or diffusers.EulerDiscreteScheduler()
    return pipeline


def ask(pipeline, steps=12, **changes):
    settings = {"output_type": "latent", "generator": torch.Generator().manual_seed(0), **changes}
    return pipeline(**{**ASKED, "num_inference_steps": steps, **settings}).images


DDIM = diffusers.DDIMScheduler

pytestmark = pytest.mark.usefixtures("one_thread")


def test_guidance_that_remembers_sees_the_last_outputs():
    """At skipped steps each branch is answered by its last output: zeros would lead momentum astray."""
    seen = []

    class Branches(type(make())):
        def __call__(self, latents):
            self.scheduler.set_timesteps(12)
            for t in self.scheduler.timesteps:
                answers = [self.unet(latents, t, embeds[None])[0] for embeds in EMBEDS]
                seen.append([answer.clone() for answer in answers])
                latents = self.scheduler.step(answers[0].mul_(0.9), t, latents)[0]  # written into, as pipelines may

    pipeline = Branches(**make().components, requires_safety_checker=False)
    with torch.no_grad(), accelerate(pipeline, ratio=2) as fast:
        fast(torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)))
    letters = fast.report.plan
    skipped = [i for i, letter in enumerate(letters) if letter != "F"]
    assert skipped
    for i in skipped:
        for answer, last in zip(seen[i], seen[letters[:i].rindex("F")], strict=True):
            assert answer.any()
            assert torch.equal(answer, last)
    assert not torch.equal(*seen[skipped[0]])


def test_calls_outside_of_a_run_are_not_skipped():
    pipeline = make()

    def stop(pipe, i, t, kwargs):
        if i == 6:
            raise RuntimeError("enough")
        return kwargs

    with torch.no_grad():
        expected = pipeline.unet(*INPUTS)[0]
        with accelerate(pipeline, ratio=3) as fast:
            with pytest.raises(RuntimeError, match="enough"):
                ask(fast, callback_on_step_end=stop)
            assert torch.equal(fast.unet(*INPUTS)[0], expected)
            assert not hasattr(fast, "report")
            ask(fast)
            assert torch.equal(fast.unet(*INPUTS)[0], expected)


def test_a_scheduler_may_be_given_to_the_twin():
    own, pipeline = diffusers.EulerDiscreteScheduler(), make()
    other = diffusers.DPMSolverMultistepScheduler.from_config(own.config)
    with accelerate(pipeline, ratio=3) as fast:
        fast.scheduler = other
        images = ask(fast)
        assert fast.report.nfe < 12
    with accelerate(pipeline, ratio=3, scheduler=other) as fast:
        assert torch.equal(ask(fast), images)
    assert type(pipeline.scheduler) is diffusers.EulerDiscreteScheduler
    assert pipeline.config["scheduler"][1] == "EulerDiscreteScheduler"


def test_a_network_may_not():
    with (
        accelerate(make()) as fast,
        pytest.raises(ZeusError, match=r"unet: got another one .* Give it to the pipeline itself"),
    ):
        fast.unet = make().unet


def test_each_loop_has_a_plan_of_its_own():
    """Several loops in one call, another pipeline over the twin's parts, and a loop of the user's."""
    pipeline = make()

    class Twice(type(pipeline)):
        def __call__(self, **settings):
            first = super().__call__(**settings)
            return super().__call__(**{**settings, "latents": first.images / 14})

    with accelerate(Twice(**pipeline.components, requires_safety_checker=False), ratio=3) as fast:
        ask(fast)
    once = Plan.uniform(12, 3).steps
    assert fast.report.plan == once + once
    assert fast.report.nfe == 2 * once.count("F") == fast.report.engine_calls
    seen = []
    with accelerate(pipeline, ratio=3, on_step=seen.append) as fast:
        again = type(pipeline)(**fast.components, requires_safety_checker=False)
        assert torch.equal(ask(again), ask(again))
        ask(fast)
        seen.clear()
        with torch.no_grad():
            fast.scheduler.set_timesteps(6)
            for t in fast.scheduler.timesteps:
                fast.scheduler.step(fast.unet(INPUTS[0], t, INPUTS[2])[0], t, INPUTS[0])
        assert "".join(step.kind for step in seen) == Plan.uniform(6, 3).steps


def test_guidance_that_begins_at_a_skipped_step():
    def guide(pipe, i, t, kwargs):
        if pipe.scheduler is not None and i == 4:
            pipe._guidance_scale = 5.0
            kwargs["prompt_embeds"] = EMBEDS
        return kwargs

    with accelerate(make(), plan=Plan("FFFFFXRFXRFF")) as fast:
        images = ask(
            fast, guidance_scale=1.0, callback_on_step_end=guide, callback_on_step_end_tensor_inputs=["prompt_embeds"]
        )
    assert images.isfinite().all()
    assert fast.report.plan == "FFFFFFXFXRFF"  # the step of the first call of another shape is full
    assert fast.report.nfe == fast.report.engine_calls == 9


def test_one_call_at_a_time():
    inside, go = threading.Event(), threading.Event()

    def wait(step):
        inside.set()
        assert go.wait(30)

    with accelerate(make(), on_step=wait) as fast:
        thread = threading.Thread(target=ask, args=(fast,))
        thread.start()
        assert inside.wait(30)
        try:
            with pytest.raises(ZeusError, match="is running; expected one at a time"):
                ask(fast)
        finally:
            go.set()
            thread.join()
        assert ask(fast).isfinite().all()


def test_predictors_on_a_grid_know_where_a_run_ends():
    """The first half of a schedule (SDXL's denoising_end): the timesteps are those that run."""
    seen = []

    class Spy(Predictor):
        def rows(self, plan, grid=None):
            seen.append(list(grid))
            return super().rows(plan, grid)

    class Half(type(make())):
        def __call__(self):
            self.scheduler.set_timesteps(20)
            self._num_timesteps = 12
            for t in self.scheduler.timesteps[:12]:
                self.scheduler.step(self.unet(INPUTS[0], t, INPUTS[2])[0], t, INPUTS[0])

    pipeline = Half(**make().components, requires_safety_checker=False)
    with torch.no_grad(), accelerate(pipeline, predictor=Spy("linear-grid", "timestep")) as fast:
        fast()
    assert seen[0] == [float(t) for t in fast.scheduler.timesteps[:12]]


@pytest.fixture(scope="module")
def bundle(family_bundle):
    return family_bundle("sd15")


def change_weights(pipeline):
    """By 2 %."""
    with torch.no_grad():
        for parameter in pipeline.unet.parameters():
            parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return pipeline


def test_an_engine_of_slightly_other_weights_is_refused(bundle):
    with accelerate(make(), engine=bundle) as fast:
        assert ask(fast).isfinite().all()
    block = accelerate(change_weights(make()), engine=bundle)
    for _ in range(2):
        with block as fast, pytest.raises(ZeusError, match="exported from other weights"):
            ask(fast)


def test_a_workload_checks_until_an_engine_fits(bundle):
    class Embedded(type(make())):
        def __call__(self, prompt, num_inference_steps, **settings):
            return super().__call__(**ASKED, num_inference_steps=num_inference_steps, **settings)

    pipeline = Embedded(**change_weights(make()).components, requires_safety_checker=False)
    workload = PipelineWorkload(pipeline, ["a"], {}, 0, bundle)
    for _ in range(2):
        with pytest.raises(ZeusError, match="exported from other weights"):
            workload.sample(Plan("FFFF"), [0], num_steps=4, backend="onnxruntime")


def test_a_session_of_a_bundle_that_is_refused_is_closed(bundle, monkeypatch):
    closed, own_close = [], Session.close
    monkeypatch.setattr(Session, "close", lambda session: closed.append(own_close(session)))
    with pytest.raises(ZeusError, match="bundle of a unet"), accelerate(FAMILIES["sd3"].make(), engine=bundle):
        pass
    assert closed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plan": 3}, "plan: got int; expected a Plan"),
        ({"plan": lambda total: "F" * total}, "plan: got str; expected a Plan"),
        ({"plan": lambda total: Plan.uniform(total + 1, 3)}, "plan: got 13 steps; expected 12"),
        ({"scheduler": "euler"}, "scheduler: got 'euler'; expected a diffusers scheduler"),
        ({"scheduler": diffusers.DDIMScheduler}, "scheduler: got .*; expected a diffusers scheduler"),
        ({"predictor": 3}, "predictor: got int"),
        ({"engine": 3}, "engine: got int"),
        ({"adaptor": "ink"}, "accelerate: got the argument adaptor; expected"),
        ({"adds_adapter": True}, "adds_adapter: got it beside no engine"),
        *(({"drift_threshold": wrong}, "drift_threshold: got") for wrong in ("a", -1, 0, float("nan"), True)),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    pipeline = make()
    with pytest.raises(ZeusError, match=message), accelerate(pipeline, **arguments) as fast:
        ask(fast)


def test_twins_and_misuse():
    pipeline = make()
    with accelerate(pipeline) as fast:
        again = type(pipeline)(**fast.components, requires_safety_checker=False)
        for parts in ({"pipeline": fast}, {"pipeline": again}, {"pipeline": pipeline, "scheduler": fast.scheduler}):
            with pytest.raises(ZeusError, match="is accelerated already, or has parts that are"):
                accelerate(**parts)
        with accelerate(pipeline) as other, pytest.raises(ZeusError, match="scheduler: got another one"):
            other.scheduler = fast.scheduler
    with pytest.raises(TypeError, match="not callable"):
        accelerate(pipeline)("a prompt")
    run = PipelineRun()
    with pytest.raises(ZeusError, match="a step of its scheduler without a call of its denoiser"):
        run.step(pipeline.scheduler, lambda: (Plan("FFF"), ""), lambda **x: None, {})


def test_attention_maps_that_a_pipeline_reads_make_every_step_full():
    pipeline = diffusers.StableDiffusionSAGPipeline(**make(DDIM()).components, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    plain = ask(pipeline, sag_scale=0.75)
    for plan in (Plan.uniform(12, 3), Plan("FRFRFRFRFRFF")):
        with accelerate(pipeline, plan=plan) as fast:
            assert torch.equal(ask(fast, sag_scale=0.75), plain)
        assert fast.report.nfe == 12
        assert fast.report.engine_calls == 24
        assert "unet keeps of each call" in fast.report.mode_reason


def test_attention_processors_that_keep_nothing_do_not():
    pipeline = diffusers.StableDiffusionPAGPipeline(**make(DDIM()).components, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    with accelerate(pipeline, ratio=3) as fast:
        ask(fast, pag_scale=2.0)
    assert fast.report.plan == Plan.uniform(12, 3).steps


def test_a_window_in_numbers_of_steps():
    with accelerate(make(DDIM()), ratio=2, window="first:4,last:2") as fast:
        ask(fast)
    assert fast.report.plan == "FFFFXRFXRFFF"


def test_guidance_that_a_callback_cuts_off():
    from diffusers.callbacks import SDCFGCutoffCallback

    pipeline, shapes = make(DDIM()), []
    with accelerate(pipeline, ratio=3) as fast:
        pipeline.unet.register_forward_pre_hook(lambda module, given: shapes.append(len(given[0])))
        ask(fast, callback_on_step_end=SDCFGCutoffCallback(cutoff_step_ratio=None, cutoff_step_index=4))
    assert fast.report.plan == "FFFFXFXFXRFF"
    assert shapes == [2] * 4 + [1] * 4
    assert fast.report.nfe == fast.report.engine_calls == 8


def test_a_change_of_the_denoiser_between_two_runs_of_an_engine(bundle):
    pipeline, calls = make(), []
    pipeline.unet.register_forward_hook(lambda *given: calls.append(1))
    with accelerate(pipeline, ratio=3, engine=bundle) as fast:
        first = ask(fast)
        assert torch.equal(ask(fast), first)
        assert len(calls) == 1
        pipeline.enable_freeu(1.2, 1.2, 0.9, 0.2)
        with pytest.raises(ZeusError, match="changed since both agreed"):
            ask(fast)
        fast.disable_freeu()
        assert torch.equal(ask(fast), first)
        pipeline.unet = make().unet
        assert torch.equal(ask(fast), first)
        pipeline.unet = change_weights(make()).unet
        with pytest.raises(ZeusError, match="exported from other weights"):
            ask(fast)
        pipeline.unet.__class__ = type("Other", (type(pipeline.unet),), {})
        with pytest.raises(ZeusError, match="got a bundle of a UNet2DConditionModel for a Other"):
            ask(fast)


def test_sizes_are_checked_before_an_engine(bundle):
    with accelerate(make(), engine=bundle) as fast:
        with pytest.raises(ZeusError, match=r"height: got 9 \(72 pixels\); expected a multiple of 2 \(16 pixels\)"):
            ask(fast, height=72)
        assert ask(fast).isfinite().all()


def test_an_engine_may_answer_in_the_same_memory(bundle):
    pipeline = make(diffusers.PNDMScheduler(skip_prk_steps=True))
    buffer = torch.empty(2, 4, 8, 8)

    def answer(sample, timestep, encoder_hidden_states):
        return buffer.copy_(pipeline.unet(sample, timestep, encoder_hidden_states)[0])

    for ratio in (0, 3):
        with (
            accelerate(pipeline, ratio, engine=Session(bundle, engine=answer)) as borrowed,
            accelerate(pipeline, ratio) as fresh,
        ):
            assert torch.equal(ask(borrowed), ask(fresh))


def test_adapters_are_managed_through_either():
    pytest.importorskip("peft", reason="peft is not installed")
    from peft import LoraConfig

    pipeline = make()
    plain = ask(pipeline)
    with accelerate(pipeline, ratio=0) as fast:
        pipeline.unet.add_adapter(
            LoraConfig(r=2, lora_alpha=4, target_modules=["to_q", "to_v"], init_lora_weights=False), "one"
        )
        adapted = ask(pipeline)
        assert torch.equal(ask(fast), adapted)
        assert not torch.equal(adapted, plain)
        fast.set_adapters("one", 0.5)
        assert read_adapters(pipeline.unet) == {"one": 0.5}
        assert torch.equal(ask(fast), ask(pipeline))
        fast.disable_lora()
        assert read_adapters(pipeline.unet) == {}
        assert torch.equal(ask(fast), plain)
        pipeline.enable_lora()
        fast.fuse_lora(lora_scale=0.5)
        assert read_adapters(pipeline.unet) == {"one": 0.25}
        assert pipeline.num_fused_loras == fast.num_fused_loras == 1
        pipeline.unfuse_lora()
        fast.unload_lora_weights()
        assert not getattr(pipeline.unet, "peft_config", None)


def test_a_scheduler_that_steps_without_a_timestep_is_refused():
    """KarrasVe steps from one sigma to the next: its pipeline runs, its twin says why it does not."""
    unet = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8,), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    )  # fmt: skip
    pipeline = diffusers.KarrasVePipeline(unet, diffusers.KarrasVeScheduler())
    pipeline.set_progress_bar_config(disable=True)
    pipeline(num_inference_steps=2, output_type="np")
    with accelerate(pipeline) as twin, pytest.raises(ZeusError, match=r"steps with model_output, sigma_hat, .*run it"):
        twin(num_inference_steps=2, output_type="np")
