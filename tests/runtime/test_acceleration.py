"""accelerate(): any pipeline, equal to itself where nothing is skipped, and to the paper's rule where something is."""

import functools
import inspect
import threading
import warnings

import diffusers
import numpy as np
import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EnginePair, OnnxRuntimeEngine, Session, accelerate
from zeus_trt.zeus_graph import Plan

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SCHEDULERS = {
    "euler": lambda: diffusers.EulerDiscreteScheduler(),
    "unipc": lambda: diffusers.UniPCMultistepScheduler(),
    "flow, shifted": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    "flow, karras": lambda: diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True),
    "flow, unipc": lambda: diffusers.UniPCMultistepScheduler(**FLOW),
    "cogvideox, stochastic": lambda: diffusers.CogVideoXDPMScheduler(),
}
OTHERS = {"cogvideox": ("euler", "cogvideox, stochastic"), "dit": ("euler", "unipc")}
OTHERS["z-image"] = ("flow, shifted",)  # it gives sigmas as a list, which diffusers' UniPC does not take
OTHERS["cogview4"] = ("flow, shifted", "flow, karras")  # it gives timesteps and sigmas, which no other solver takes
OTHERS |= dict.fromkeys(("sd15", "sd21-v", "sdxl", "sdxl-refiner", "inpaint", "pixart"), ("euler", "unipc"))
ENGINES = ("inpaint", "flux")
SIZES = ({}, {"height": 128, "width": 64})
ONE_SIZE = ("sana", "ltx", "pixart", "z-image")  # whose graphs do not take the second


class Run:
    """A family's run with another number of steps, and other arguments, of a pipeline or of its twin."""

    def __init__(self, pipeline, **changes):
        self._pipeline, self._changes = pipeline, {"num_inference_steps": 12, **changes}

    def __getattr__(self, name):
        return getattr(self._pipeline, name)

    def __call__(self, **arguments):
        takes = inspect.signature(self._pipeline.__call__).parameters
        changes = {name: value for name, value in self._changes.items() if name in takes}
        torch.manual_seed(5)
        return self._pipeline(**{**arguments, **changes})


def run(family, pipeline, setting=None, **changes):
    """The first output of a run, as a tensor."""
    setting = {name: value for name, value in {**family.base, **(setting or {})}.items() if name in family.base}
    output = family.run(Run(pipeline, **changes), **setting)[0]
    return output if isinstance(output, torch.Tensor) else torch.from_numpy(np.stack([np.asarray(p) for p in output]))


def follow_the_paper(scheduler, plan):
    """Has ``scheduler.step`` compute what ``zeus`` says at skipped steps, the denoiser running at all of them.

    LTX-2 copies the scheduler for its sound: each copy keeps its outputs apart.
    """
    kind = type(scheduler)

    @functools.wraps(kind.step)
    def step(self, model_output, *args, **kwargs):
        used, full = vars(self).setdefault("seen", ([], []))
        letter, i = plan.steps[len(used)], len(used)
        if letter == "F":
            full.append(i)
        else:
            t, previous = full[-1], full[-2]
            before = used[previous] if t - previous > 2 else used[t - 1]
            model_output = 2 * used[t] - before if letter == "X" else used[t]
        used.append(model_output.clone())
        return kind.step(self, model_output, *args, **kwargs)

    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    warnings.simplefilter("ignore")
    return request.param, FAMILIES[request.param]


@pytest.mark.parametrize("guidance", [{}, {"guidance_scale": 1.0, "true_cfg_scale": 1.0}], ids=["guided", "unguided"])
def test_nothing_skipped_is_the_pipeline_itself_to_the_bit(family, guidance):
    name, family = family
    pipeline = family.make()
    own = pipeline.scheduler
    for scheduler in (None, *OTHERS.get(name, ("flow, shifted", "flow, unipc"))):
        pipeline.scheduler = SCHEDULERS[scheduler]() if scheduler else own
        for size in SIZES:
            expected = run(family, pipeline, size, num_inference_steps=4, **guidance)
            before = {name: dict(vars(part)) for name, part in pipeline.components.items() if hasattr(part, "__dict__")}
            with accelerate(pipeline, ratio=0) as fast:
                assert torch.equal(run(family, fast, size, num_inference_steps=4, **guidance), expected)
            after = {name: dict(vars(part)) for name, part in pipeline.components.items() if hasattr(part, "__dict__")}
            assert fast.report.nfe == len(fast.report.plan) == fast.report.plan.count("F")
            assert list(after) == list(before)
            assert all(after[part].keys() == before[part].keys() for part in before)


def test_skipped_steps_follow_the_paper(family):
    _, family = family
    pipeline = family.make()
    with accelerate(pipeline, ratio=3) as fast:
        skipped = run(family, fast)
    assert fast.report.nfe < len(fast.report.plan)
    follow_the_paper(pipeline.scheduler, Plan(fast.report.plan))
    expected = run(family, pipeline).float()
    assert (skipped.float() - expected).norm() < 1e-5 * expected.norm()
    assert not torch.equal(skipped, run(family, family.make()))


@pytest.mark.parametrize(
    "name",
    [*ENGINES, pytest.param("wan", marks=pytest.mark.extra)]
    + [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES.keys() - {*ENGINES, "wan"}],
)
def test_a_bundles_engine_in_the_denoisers_place(name, family_bundle):
    family = FAMILIES[name]
    pipeline = family.make()
    bundle = family_bundle(name)
    session = Session(bundle, engine=OnnxRuntimeEngine(bundle.graph(), num_threads=1))
    own = pipeline.scheduler
    for scheduler in (None, *OTHERS.get(name, ("flow, shifted", "flow, unipc"))):
        pipeline.scheduler = SCHEDULERS[scheduler]() if scheduler else own
        for size in (
            SIZES if "height" in family.base and name not in ("sana", "ltx", "pixart", "z-image") else SIZES[:1]
        ):
            expected = run(family, pipeline, size).float()
            with accelerate(pipeline, 0, engine=session) as fast:
                made = run(family, fast, size).float()
            assert (made - expected).norm() < 1e-4 * expected.norm()
            assert fast.report.backend == "onnxruntime"
    with accelerate(pipeline, 3, engine=session) as fast, accelerate(pipeline, 3) as uncompiled:
        made, expected = run(family, fast).float(), run(family, uncompiled).float()
    assert fast.report.nfe < len(fast.report.plan)
    assert (made - expected).norm() < 1e-3 * expected.norm()


def test_two_engines_of_a_bundle_share_the_steps(family_bundle):
    """The quantized engine is a double: the bundle's own engine, which counts its calls."""
    name = ENGINES[0]
    family, bundle, calls = FAMILIES[name], family_bundle(name), []
    own = OnnxRuntimeEngine(bundle.graph(), num_threads=1)

    def coarse(**inputs):
        calls.append(1)
        return own(**inputs)

    session = Session(bundle, engine=EnginePair(own, coarse))
    with accelerate(family.make(), 2, engine=session) as fast:
        expected = run(family, fast).float()
    plan = Plan(fast.report.plan)
    with accelerate(family.make(), plan=plan.with_quantized(plan.full_steps), engine=session) as fast:
        made = run(family, fast).float()
    assert fast.report.plan == "F" + plan.steps[1:].replace("F", "Q")  # the first step comes before the plan
    assert len(calls) == fast.report.plan.count("Q") * fast.report.engine_calls // fast.report.nfe > 0
    assert torch.equal(made, expected)
    eager = accelerate(family.make(), plan=plan.with_quantized(plan.full_steps))
    with eager as fast, pytest.raises(ZeusError, match="got Q for a pipeline without an engine"):
        run(family, fast)


def test_two_threads_with_two_accelerations_of_one_pipeline():
    family = FAMILIES["wan"]
    pipeline = family.make()

    def make(ratio, steps):
        noise = torch.randn(2, 4, 3, 8, 12, generator=torch.Generator().manual_seed(ratio))
        with accelerate(pipeline, ratio) as fast:
            made = fast(
                prompt_embeds=torch.ones(2, 7, 16), negative_prompt_embeds=torch.zeros(2, 7, 16), latents=noise,
                height=64, width=96, num_frames=9, num_inference_steps=steps, output_type="latent",
            )[0]  # fmt: skip
            return made, fast.report.plan

    tasks = [(2, 12), (3, 15), (4, 10), (0, 6)]
    serial = [make(*task) for task in tasks]
    together: list = [None] * len(tasks)
    threads = [
        threading.Thread(target=lambda k=k, task=task: together.__setitem__(k, make(*task)))
        for k, task in enumerate(tasks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for (made, plan), (expected, expected_plan) in zip(together, serial, strict=True):
        assert plan == expected_plan
        assert torch.equal(made, expected)


def test_any_number_of_steps_on_one_twin():
    family = FAMILIES["sd15"]
    with accelerate(family.make(), ratio=2) as fast:
        for steps in (1, 2, 3, 7, 30):
            run(family, fast, num_inference_steps=steps)
            assert len(fast.report.plan) == steps
            assert fast.report.plan[-1] == "F"


def test_solvers_of_two_evaluations_and_random_ones():
    family = FAMILIES["sd15"]
    pipeline = family.make()
    for scheduler in (diffusers.HeunDiscreteScheduler(), diffusers.EulerAncestralDiscreteScheduler()):
        expected = run(family, family.make(), {}, num_inference_steps=8)
        with accelerate(pipeline, ratio=2, scheduler=scheduler) as fast:
            made = run(family, fast, num_inference_steps=8)
        assert torch.isfinite(made).all()
        assert len(fast.report.plan) == (15 if "Heun" in type(scheduler).__name__ else 8)
        assert not torch.equal(made, expected)


def test_image_to_image_begins_in_the_middle():
    parts = FAMILIES["inpaint"].make().components
    pipeline = diffusers.StableDiffusionImg2ImgPipeline(
        **{**parts, "unet": FAMILIES["sd15"].make().unet}, requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)
    embeds = {"prompt_embeds": torch.ones(1, 7, 16), "negative_prompt_embeds": torch.zeros(1, 7, 16)}
    image = torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)

    def make(pipeline):
        return pipeline(
            **embeds, image=image, strength=0.5, num_inference_steps=20, output_type="latent",
            generator=torch.Generator().manual_seed(0),
        )[0]  # fmt: skip

    for scheduler in (
        diffusers.DDIMScheduler(),
        diffusers.PNDMScheduler(skip_prk_steps=True),
        diffusers.EulerDiscreteScheduler(),
    ):
        pipeline.scheduler = scheduler
        with accelerate(pipeline, ratio=0) as same, accelerate(pipeline, ratio=2) as fast:
            assert torch.equal(make(same), make(pipeline))
            make(fast)
        assert len(fast.report.plan) == len(same.report.plan) in (10, 11)
        assert fast.report.nfe < same.report.nfe


def test_where_another_expert_takes_over_two_steps_are_full():
    family = FAMILIES["wan"]
    pipeline, other = family.make(), family.make()
    pipeline.register_modules(transformer_2=other.transformer)
    pipeline.register_to_config(boundary_ratio=0.5)
    with accelerate(pipeline, ratio=4) as fast:
        made = run(family, fast, num_inference_steps=20)
    with accelerate(family.make(), ratio=4) as alone:
        run(family, alone, num_inference_steps=20)
    switch = next(i for i, timestep in enumerate(fast.scheduler.timesteps) if timestep < 500)
    assert torch.isfinite(made).all()
    assert alone.report.plan[switch : switch + 2] != "FF"
    assert fast.report.plan[switch : switch + 2] == "FF"
    assert fast.report.nfe == fast.report.plan.count("F")
    assert fast.report.engine_calls == 2 * fast.report.nfe


def test_drift_is_told_and_makes_steps_full():
    family = FAMILIES["sd15"]
    with accelerate(family.make(), ratio=3, drift_threshold=1e9) as told:
        run(family, told, num_inference_steps=20)
    with accelerate(family.make(), ratio=3, drift_threshold=1e-9) as strict:
        run(family, strict, num_inference_steps=20)
    assert [step for step, _ in told.report.drift] == [8, 12, 16, 18]
    assert all(0 < drift < 10 for _, drift in told.report.drift)
    assert strict.report.nfe > told.report.nfe


def test_an_output_that_is_not_finite_stops_the_run():
    family = FAMILIES["sd15"]
    pipeline = family.make()
    with torch.no_grad():
        pipeline.unet.conv_out.bias.fill_(float("nan"))
    with accelerate(pipeline, ratio=3) as fast, pytest.raises(ZeusError, match="model_output: got NaN or infinity"):
        run(family, fast)


def test_steps_are_told_with_the_output_after_guidance():
    family = FAMILIES["sd15"]
    pipeline, steps = family.make(), []
    with accelerate(pipeline, ratio=2, on_step=steps.append) as fast:
        made = run(family, fast)
    assert "".join(step.kind for step in steps) == fast.report.plan
    assert torch.equal(steps[-1].latents, made)
    assert steps[0].output.shape == made.shape  # one per picture, not one per branch of guidance


def test_a_compiled_denoiser_and_one_with_hooks():
    family = FAMILIES["sd15"]
    pipeline = family.make()
    expected = run(family, pipeline)
    pipeline.unet = torch.compile(pipeline.unet, backend="eager")
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(run(family, fast), expected)
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    pipeline = family.make()
    hooks.add_hook_to_module(pipeline.unet, hooks.ModelHook())
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(run(family, fast), expected)
    assert hasattr(pipeline.unet, "_hf_hook")


def test_an_error_in_the_run_leaves_nothing_behind():
    family = FAMILIES["sd15"]
    pipeline = family.make()
    before = dict(vars(pipeline))

    def stop(step):
        raise RuntimeError("enough")

    with accelerate(pipeline, ratio=2, on_step=stop) as fast, pytest.raises(RuntimeError, match="enough"):
        run(family, fast)
    assert vars(pipeline) == before
    assert torch.equal(run(family, pipeline), run(family, family.make()))


def test_a_run_that_never_steps_its_scheduler_is_refused():
    class Direct(type(FAMILIES["sd15"].make())):
        def __call__(self):
            return self.unet(torch.zeros(1, 4, 8, 8), 1.0, torch.zeros(1, 7, 16))

    parts = FAMILIES["sd15"].make().components
    with (
        accelerate(Direct(**parts, requires_safety_checker=False)) as fast,
        pytest.raises(ZeusError, match="without a step of its denoiser and its scheduler"),
    ):
        fast()


def test_what_cannot_be_served_is_refused(family_bundle):
    family = FAMILIES["sd15"]
    pipeline = family.make()
    with pytest.raises(ZeusError, match="expected a diffusers pipeline"), accelerate(torch.nn.Linear(1, 1)):
        pass
    with pytest.raises(ZeusError, match="ratio: got -1"), accelerate(pipeline, ratio=-1):
        pass
    with (
        accelerate(pipeline, plan=Plan("FFXF")) as fast,
        pytest.raises(ZeusError, match="got 4 steps; expected 12"),
    ):
        run(family, fast)
    bundle = family_bundle("sd15")
    other = family.make()
    with torch.no_grad():
        for parameter in other.unet.parameters():
            parameter.mul_(1.3)
    with (
        accelerate(other, engine=bundle) as fast,
        pytest.raises(ZeusError, match="exported from other weights"),
    ):
        run(family, fast)
    with (
        pytest.raises(ZeusError, match="bundle of a unet"),
        accelerate(FAMILIES["flux"].make(), engine=bundle),
    ):
        pass
    extra = {"cross_attention_kwargs": {"note": 1}}
    with (
        accelerate(pipeline, engine=bundle) as fast,
        pytest.raises(ZeusError, match="note: got 1 from the pipeline"),
    ):
        run(family, fast, **extra)
