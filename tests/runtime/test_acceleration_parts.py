"""accelerate(): the parts of a twin are the pipeline's, found by what they do, and no class is changed."""

import copy
import pickle
from types import SimpleNamespace

import diffusers
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import accelerate
from zeus_trt.runtime.pipelines.denoisers import check_plain
from zeus_trt.zeus_graph import Plan, Predictor

STEPS = 12
PLAN = Plan.uniform(STEPS, 3)

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(torch.nn.Module):
    """A network double with an unusual name and signature, which counts its calls."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(gain))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.answer(torch.tanh(x * self.gain))

    def answer(self, value):
        return value


class Borrowing(Net):
    """Answers in the same memory each time."""

    def answer(self, value):
        self.buffer = getattr(self, "buffer", torch.empty_like(value))
        return self.buffer.copy_(value)


class Wrapping(Net):
    """Answers in an object that torch does not know, in the same memory."""

    def answer(self, value):
        self.buffer = getattr(self, "buffer", torch.empty_like(value))
        return SimpleNamespace(out=self.buffer.copy_(value))


class Slots:
    __slots__ = ("out",)


class Nesting(Net):
    """Answers in objects in an object, with another tensor beside, in the same memory."""

    def answer(self, value):
        self.buffer = getattr(self, "buffer", torch.empty_like(value))
        self.slots = Slots()
        self.slots.out = self.buffer.copy_(value)
        return SimpleNamespace(out=[self.slots], aside={"a": torch.ones(3)})


class Differentiating(Net):
    """Answers in the same memory, with a gradient."""

    def forward(self, x):
        with torch.enable_grad():
            value = super().forward(x)
            self.buffer = getattr(self, "buffer", torch.empty_like(value)).detach()
            return self.buffer.copy_(value)


class Loop(diffusers.DiffusionPipeline):
    """A pipeline double: ``my_net`` is called for each branch of guidance, ``encoder`` before and ``head`` after."""

    def __init__(self, my_net, scheduler, head=None, encoder=None, second=None):
        super().__init__()
        self.register_modules(my_net=my_net, scheduler=scheduler)
        self.head, self.encoder, self.second = head or Net(), encoder or Net(), second
        self.classes = []

    @torch.no_grad()
    def __call__(self, steps=STEPS, callback_on_step_end=None):
        self.scheduler.set_timesteps(steps)
        self._count = 0
        scheduler = self.make_scheduler()
        self.classes.append(type(scheduler))
        latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        latents = latents + 0 * self.encoder(latents)
        for i, t in enumerate(scheduler.timesteps):
            net = self.second if self.second is not None and 2 * i > steps else self.my_net
            cond, uncond = net(latents), net(0.3 * latents)
            cond, uncond = (read(answer) for answer in (cond, uncond))
            latents = scheduler.step(uncond + 3 * (cond - uncond), t, latents, return_dict=False)[0]
            self._count += 1
            if callback_on_step_end:
                latents = callback_on_step_end(self, i, t, {"latents": latents})["latents"]
        return self.head(latents)

    def make_scheduler(self):
        return self.scheduler


def read(answer):
    """The tensor in an answer of a ``Net``."""
    inner = getattr(answer, "out", answer)
    return read(inner[0].out) if isinstance(inner, list) else inner


def make(net=None, scheduler=None, **parts):
    return Loop(net or Net(), scheduler or diffusers.DDIMScheduler(clip_sample=False), **parts)


def test_a_network_of_any_name_is_found_by_what_it_does():
    pipeline = make()
    expected = pipeline()
    for part in (pipeline.my_net, pipeline.head, pipeline.encoder):
        part.calls = 0
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(fast(), expected)
    assert fast.report.engine_calls == pipeline.my_net.calls == 2 * STEPS
    pipeline.my_net.calls = pipeline.head.calls = pipeline.encoder.calls = 0
    called = []
    with accelerate(pipeline, ratio=3, on_call=lambda: called.append(1)) as fast:
        assert not torch.equal(fast(), expected)
        assert fast.report.plan == PLAN.steps
        assert pipeline.my_net.calls == fast.report.engine_calls == len(called) == 2 * PLAN.nfe
        assert pipeline.head.calls == pipeline.encoder.calls == 1
        fast(1)
        assert (fast.report.plan, fast.report.engine_calls) == ("F", 2)


def test_a_second_network_that_takes_over_is_found_too():
    pipeline = make(second=Net(0.7))
    plain = pipeline()
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(fast(), plain)
    pipeline.my_net.calls = pipeline.second.calls = 0
    with accelerate(pipeline, plan=Plan("FFFFXRXRXRFF")) as fast:
        fast()
    assert fast.report.plan[7:9] == "FF"
    assert fast.report.nfe == fast.report.plan.count("F") < STEPS
    assert pipeline.my_net.calls + pipeline.second.calls == fast.report.engine_calls == 2 * fast.report.nfe


@pytest.mark.parametrize("kind", [Borrowing, Wrapping, Nesting, Differentiating])
@pytest.mark.parametrize("ratio", [0, 3])
@pytest.mark.parametrize("scheduler", [diffusers.DDIMScheduler, diffusers.PNDMScheduler, diffusers.IPNDMScheduler])
def test_a_denoiser_may_answer_in_the_same_memory(kind, ratio, scheduler):
    images = []
    for net in (Net(), kind()):
        with accelerate(make(net, scheduler()), ratio=ratio) as fast:
            images.append(fast())
    assert torch.equal(*images)


@pytest.mark.parametrize("ratio", [0, 3])
def test_parts_are_read_when_they_are_used(ratio):
    pipeline = make()
    with accelerate(pipeline, ratio=ratio) as fast:
        first = fast()
        changes = {
            "my_net": Net(0.5),
            "scheduler": diffusers.DPMSolverMultistepScheduler(),
            "head": Net(2.0),
        }
        for name, part in changes.items():
            setattr(pipeline, name, part)
            changed = fast()
            with accelerate(pipeline, ratio=ratio) as anew:
                assert torch.equal(changed, anew()), name
            assert not torch.equal(changed, first), name
            first = changed
        pipeline.my_net = torch.compile(pipeline.my_net, backend="eager")
        assert torch.equal(fast(), first)
        pipeline.scheduler.register_to_config(solver_order=1)
        assert not torch.equal(fast(), first)


def test_what_is_given_to_a_twin_counts_until_the_pipeline_is_given_another():
    pipeline, own = make(), diffusers.DPMSolverMultistepScheduler()
    with accelerate(pipeline, ratio=0, scheduler=own) as fast, accelerate(pipeline, ratio=0) as other:
        assert type(fast.scheduler) is diffusers.DPMSolverMultistepScheduler
        assert type(other.scheduler) is type(pipeline.scheduler) is diffusers.DDIMScheduler
        fast.head = head = Net(3.0)
        assert fast.head.gain is head.gain
        assert other.head.gain is pipeline.head.gain
        pipeline.scheduler = diffusers.EulerDiscreteScheduler()
        pipeline.head = last = Net(4.0)
        assert type(fast.scheduler) is type(other.scheduler) is diffusers.EulerDiscreteScheduler
        assert fast.head.gain is other.head.gain is last.gain


def test_what_a_run_assigns_is_the_twins_and_what_is_set_between_runs_is_shared():
    pipeline = make()
    with accelerate(pipeline, ratio=3) as fast:
        fast()
        assert fast._count == STEPS
        assert not hasattr(pipeline, "_count")
        assert fast.report.nfe == PLAN.nfe
        pipeline.set_progress_bar_config(disable=True)
        assert fast._progress_bar_config == {"disable": True}
        fast.set_progress_bar_config(disable=False)
        assert pipeline._progress_bar_config == {"disable": False}
        fast.my_net.note = 3  # of the module itself, as an adapter's are
        assert pipeline.my_net.note == 3
        del pipeline.my_net.note
        assert not hasattr(fast.my_net, "note")


class Scaled(Loop):
    """Keeps an argument for its steps, as pipelines keep the scale of guidance, and says what it reads in the end."""

    def __call__(self, scale=2.0, meanwhile=None):
        self._scale = scale
        if meanwhile:
            meanwhile()
        super().__call__()
        return self._scale


def test_a_run_reads_its_own_arguments_whatever_the_run_before_and_the_pipeline_have():
    pipeline = Scaled(Net(), diffusers.DDIMScheduler(clip_sample=False))
    with accelerate(pipeline) as fast:
        assert pipeline() == fast() == 2.0
        assert fast(3.0) == 3.0
        assert fast() == 2.0  # the pipeline has this very number
        assert fast(meanwhile=lambda: pipeline(4.0)) == 2.0


@pytest.mark.parametrize("how", ["itself", "copied", "from its config and given back"])
def test_a_scheduler_keeps_its_class_and_is_counted(how):
    class Copying(Loop):
        def make_scheduler(self):
            if how == "copied":
                return copy.deepcopy(self.scheduler)
            if how != "itself":
                self.scheduler = type(self.scheduler).from_config(self.scheduler.config)
                self.scheduler.set_timesteps(STEPS)
            return self.scheduler

    pipeline = Copying(Net(), diffusers.EulerDiscreteScheduler())
    own = dict(vars(pipeline.scheduler))
    with accelerate(pipeline, ratio=3) as fast:
        first = fast()
        assert torch.equal(fast(), first)
    assert fast.report.plan == PLAN.steps
    assert fast.report.nfe == PLAN.nfe
    assert pipeline.classes == [diffusers.EulerDiscreteScheduler] * 2
    assert type(fast.scheduler) is diffusers.EulerDiscreteScheduler
    assert vars(pipeline.scheduler) == own


def test_the_attributes_of_a_scheduler_may_be_kept_and_given_back():
    """As pipelines of many views do: the methods stay those of the scheduler that has the attributes."""

    class Restoring(Loop):
        def make_scheduler(self):
            kept = copy.deepcopy(vars(self.scheduler))
            self.scheduler.set_begin_index(3)
            vars(self.scheduler).update(kept)
            return self.scheduler

    pipeline = Restoring(Net(), diffusers.EulerDiscreteScheduler())
    plain = pipeline()
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(fast(), plain)
        assert fast.scheduler.step_index == STEPS
        assert torch.equal(fast(), plain)


def test_a_pipeline_made_from_a_twin(tmp_path):
    class Unet(Net):
        pass

    pipeline = make(Unet())
    with accelerate(pipeline, ratio=3) as fast:
        assert type(fast.my_net) == Unet  # noqa: E721  (as ``type(component) in types`` of from_pipe)
        assert type(copy.deepcopy(fast.my_net)) is Unet
        fast.scheduler.save_pretrained(tmp_path)
        again = Loop(**fast.components)
        assert torch.equal(again(), fast())
    assert (tmp_path / "scheduler_config.json").is_file()


def test_what_a_callback_calls_is_run_and_not_counted():
    pipeline = make()
    seen = []

    def preview(pipe, i, t, kwargs):
        seen.append((pipe.my_net(kwargs["latents"]), torch.tanh(kwargs["latents"]), pipe.head(kwargs["latents"])))
        return kwargs

    with accelerate(pipeline, ratio=3) as fast:
        made = fast(callback_on_step_end=preview)
        assert fast.report.engine_calls == 2 * PLAN.nfe
        assert fast.report.plan == PLAN.steps
        assert torch.equal(made, fast())
    assert len(seen) == STEPS
    assert all(torch.equal(answer, expected) for answers in seen for answer, expected in [answers[:2]])
    assert pipeline.head.calls == STEPS + 2


@pytest.mark.parametrize("scheduler", [diffusers.DDIMScheduler, diffusers.EulerDiscreteScheduler])
def test_a_callback_may_step_the_scheduler_and_copies_of_it(scheduler):
    def preview(pipe, i, t, kwargs):
        latents = kwargs["latents"]
        short = pickle.loads(pickle.dumps(copy.deepcopy(pipe.scheduler)))
        assert type(short) is scheduler
        for one in (copy.deepcopy(pipe.scheduler), short):
            one.set_timesteps(3)
            one.step(pipe.my_net(latents), one.timesteps[0], latents)
        if scheduler is diffusers.DDIMScheduler and i in (5, 7):  # its steps leave nothing behind
            pipe.scheduler.step(pipe.my_net(latents), t, latents)
        return kwargs

    with accelerate(make(scheduler=scheduler()), ratio=3) as fast:
        expected = fast()
        assert torch.equal(fast(callback_on_step_end=preview), expected)
    assert fast.report.plan == PLAN.steps
    assert fast.report.engine_calls == 2 * PLAN.nfe


@pytest.mark.parametrize(
    ("dropped", "plan"), [(3, "FFFFFFXRXRFF"), (4, "FFFFXFFXRXFF"), (7, "FFFFXRXRFFFF"), (10, "FFFFXRXRXRFF")]
)
@pytest.mark.parametrize(
    ("predictor", "threshold"), [("zeus", None), ("zeus", 1e9), ("lagrange-3", None), ("extrapolate", None)]
)
def test_a_callback_that_drops_rows_makes_two_steps_full(dropped, plan, predictor, threshold):
    """Outputs of another shape are not predicted from: the first two of the new shape are full."""

    def drop(pipe, i, t, kwargs):
        return {"latents": kwargs["latents"].repeat(3, 1, 1, 1)} if i == dropped else kwargs

    pipeline, rows = make(), []
    pipeline.my_net.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    with accelerate(pipeline, plan=Plan("FFFFXRXRXRFF"), predictor=predictor, drift_threshold=threshold) as fast:
        assert fast(callback_on_step_end=drop).isfinite().all()
    assert fast.report.plan == plan
    assert fast.report.engine_calls == len(rows) == 2 * fast.report.nfe == 2 * plan.count("F")
    assert rows == [1] * 2 * plan[: dropped + 1].count("F") + [3] * 2 * plan[dropped + 1 :].count("F")


@pytest.mark.parametrize(("dropped", "plan"), [(3, "FFFFFFFFFFFF"), (4, "FFFFXFFFFFFF"), (7, "FFFFXRXRFFFF")])
def test_a_table_of_weights_on_outputs_of_another_shape_is_not_read(dropped, plan):
    def drop(pipe, i, t, kwargs):
        return {"latents": kwargs["latents"].repeat(3, 1, 1, 1)} if i == dropped else kwargs

    table = Predictor.from_table({i: {2: -1.0, 3: 2.0} for i in range(4, 10)})
    with accelerate(make(), plan=Plan("FFFFXRXRXRFF"), predictor=table) as fast:
        assert fast(callback_on_step_end=drop).isfinite().all()
    assert fast.report.plan == plan
    assert fast.report.engine_calls == 2 * fast.report.nfe == 2 * plan.count("F")


def test_a_callback_that_changes_a_later_branch_makes_its_step_full():
    """The first call has the shape that it had; that of the second would not be answered from memory."""

    class Two(Loop):
        @torch.no_grad()
        def __call__(self, callback_on_step_end=None):
            self.scheduler.set_timesteps(STEPS)
            latents, negative = torch.full((1, 4, 8, 8), 0.3), torch.ones(1, 4, 8, 8)
            for i, t in enumerate(self.scheduler.timesteps):
                cond, uncond = self.my_net(latents), self.my_net(negative).mean()
                latents = self.scheduler.step(cond + 0.1 * uncond, t, latents, return_dict=False)[0]
                negative = callback_on_step_end(self, i, t, {"negative": negative})["negative"]

    def halve(pipe, i, t, kwargs):
        return {"negative": kwargs["negative"][:, :2]} if i == 4 else kwargs

    pipeline = Two(Net(), diffusers.DDIMScheduler(clip_sample=False))
    with accelerate(pipeline, plan=Plan("FFFFXRXRXRFF")) as fast:
        fast(halve)
    assert fast.report.plan == "FFFFXFXRXRFF"
    assert pipeline.my_net.calls == fast.report.engine_calls == 2 * fast.report.nfe == 14


def test_a_table_of_weights_follows_too():
    table = Predictor.from_table({4: {3: 1.0}, 5: {3: 1.0}, 6: {3: 1.0}})
    seen = []

    def grow(pipe, i, t, kwargs):
        seen.append(kwargs["latents"].shape[0])
        return {"latents": torch.cat([kwargs["latents"]] * 2)} if i == 3 else kwargs

    class One(Loop):
        @torch.no_grad()
        def __call__(self, callback_on_step_end):
            self.scheduler.set_timesteps(8)
            latents = torch.full((1, 4, 8, 8), 0.3)
            for i, t in enumerate(self.scheduler.timesteps):
                output = self.my_net(latents).mean(0, keepdim=True).expand(latents.shape)
                latents = self.scheduler.step(output[:1], t, latents, return_dict=False)[0]
                latents = callback_on_step_end(self, i, t, {"latents": latents})["latents"]

    pipeline = One(Net(), diffusers.DDIMScheduler(clip_sample=False))
    with accelerate(pipeline, plan=Plan("FFFFXXXF"), predictor=table) as fast:
        fast(grow)
    assert fast.report.plan == "FFFFFXXF"
    assert fast.report.engine_calls == fast.report.nfe == pipeline.my_net.calls == 6


class Combined(diffusers.DiffusionPipeline):
    """A double of Kandinsky's combined pipelines."""

    def __init__(self, prior_pipe, decoder_pipe):
        super().__init__()
        self.prior_pipe, self.decoder_pipe = prior_pipe, decoder_pipe

    def __call__(self, *names):
        return torch.cat([getattr(self, name)() for name in names or ("prior_pipe", "decoder_pipe")])


def test_each_pipeline_of_a_pipeline_of_pipelines_is_accelerated():
    prior, decoder = make(), make()
    pipeline = Combined(prior, decoder)
    plain = pipeline()
    with accelerate(pipeline, ratio=0) as twin:
        assert isinstance(twin, Combined)
        assert torch.equal(twin(), plain)
        assert twin.report.nfe == 2 * STEPS
    with accelerate(pipeline, ratio=3) as twin:
        twin()
        assert twin.report.plan == 2 * PLAN.steps
        assert twin.report.speedup_bound == STEPS / PLAN.nfe
        twin("prior_pipe")
        assert twin.report.plan == PLAN.steps
        twin("decoder_pipe", "prior_pipe", "decoder_pipe")
        assert twin.report.nfe == 3 * PLAN.nfe
    assert (pipeline.prior_pipe, pipeline.decoder_pipe) == (prior, decoder)
    assert not hasattr(pipeline, "report")


def test_what_belongs_to_one_of_several_pipelines_is_refused():
    with pytest.raises(ZeusError, match=r"scheduler: got one for a Combined, made of the pipelines prior_pipe, dec"):
        accelerate(Combined(make(), make()), scheduler=diffusers.DDIMScheduler())
    pipeline = Combined(make(), make())
    with pytest.raises(ZeusError, match=r"made of the pipelines prior_pipe, decoder_pipe; .* Use these one by one"):
        check_plain(pipeline)
    pipeline.prior_pipe.scheduler = pipeline.decoder_pipe.scheduler = None
    with pytest.raises(ZeusError, match=r"made of the pipelines prior_pipe, decoder_pipe; .* Accelerate these"):
        accelerate(pipeline)


def test_a_run_without_steps_says_what_can_be_done():
    class Empty(Loop):
        def __call__(self, is_set):
            if is_set:
                self.scheduler.set_timesteps(4)

    with accelerate(Empty(Net(), diffusers.DDIMScheduler())) as fast:
        with pytest.raises(ZeusError, match=r"leave no step of the schedule; .* Raise its strength"):
            fast(True)
        with pytest.raises(ZeusError, match="run it as it is"):
            fast(False)


def test_hooks_put_on_a_module_later_are_run():
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    called = []

    class Hook(hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            called.append(module)
            return args, kwargs

    pipeline = make()
    with accelerate(pipeline, ratio=3) as fast:
        expected = fast()
        hooks.add_hook_to_module(pipeline.my_net, Hook())
        assert torch.equal(fast(), expected)
        assert len(called) == 2 * PLAN.nfe
        hooks.remove_hook_from_module(fast.my_net)
        assert torch.equal(fast(), expected)
        assert len(called) == 2 * PLAN.nfe


def test_a_run_that_ends_early_is_checked_for_numbers():
    class Early(Loop):
        @torch.no_grad()
        def __call__(self):
            self.scheduler.set_timesteps(STEPS)
            latents = torch.full((1, 4, 8, 8), 0.3)
            for t in self.scheduler.timesteps[:5]:
                latents = self.scheduler.step(3e38 * self.my_net(latents), t, latents, return_dict=False)[0]

    with (
        accelerate(Early(Net(), diffusers.DDIMScheduler(clip_sample=False)), ratio=0) as fast,
        pytest.raises(ZeusError, match="latents: got NaN or infinity"),
    ):
        fast()


def test_a_gradient_through_a_denoiser_makes_its_steps_full():
    class Guided(Loop):
        def __call__(self):
            self.scheduler.set_timesteps(STEPS)
            latents = torch.full((1, 4, 8, 8), 0.3)
            for i, t in enumerate(self.scheduler.timesteps):
                if i < 7:
                    leaf = latents.detach().requires_grad_()
                    latents = latents - 0.1 * torch.autograd.grad(self.my_net(leaf).square().sum(), leaf)[0]
                with torch.no_grad():
                    latents = self.scheduler.step(self.my_net(latents), t, latents, return_dict=False)[0]
            return latents

    pipeline = Guided(Net(), diffusers.DDIMScheduler(clip_sample=False))
    plain = pipeline()
    with accelerate(pipeline, ratio=0) as fast:
        assert torch.equal(fast(), plain)
    pipeline.my_net.calls = 0
    with accelerate(pipeline, plan=Plan("FFFFXRXRXRFF")) as fast:
        assert fast().isfinite().all()
    assert fast.report.plan == "FFFFFFFXFXFF"  # fewer calls at step 7: what is predicted is looked at again
    assert pipeline.my_net.calls == fast.report.engine_calls == 2 * 7 + 3
    assert fast.report.nfe == 10
