"""Modular pipelines of diffusers: the twin is theirs to the bit at ratio 0, skips, and runs by an engine."""

import sys

import diffusers
import pytest
import torch
from checkout import ROOT
from diffusers.configuration_utils import register_to_config

import zeus_trt
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.open_model import open_model
from zeus_trt.pipeline_model import PipelineModel

modular = pytest.importorskip("diffusers.modular_pipelines", reason="needs a diffusers with modular pipelines")


class Net(diffusers.ModelMixin, diffusers.ConfigMixin):
    """The least that denoises."""

    config_name = "config.json"

    @register_to_config
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, sample, timestep, return_dict=True):
        return (self.conv(sample) + 1e-3 * timestep.reshape(-1, 1, 1, 1) * sample.tanh(),)


class Step(modular.ModularPipelineBlocks):
    """Two calls of the denoiser, what guidance makes of them, and a step."""

    model_name = "own"

    @property
    def expected_components(self):
        spec = modular.ComponentSpec
        return [spec("unet", Net), spec("scheduler", diffusers.DDIMScheduler)]

    @property
    def intermediate_outputs(self):
        return [modular.OutputParam("latents")]

    @torch.no_grad()
    def __call__(self, components, state, i, t):
        one, two = (components.unet(scale * state.latents, t, return_dict=False)[0] for scale in (1.0, 0.5))
        state.latents = components.scheduler.step(two + 1.5 * (one - two), t, state.latents, return_dict=False)[0]
        return components, state


class Loop(modular.LoopSequentialPipelineBlocks):
    """Noise and a loop."""

    model_name, block_classes, block_names = "own", [Step], ["step"]

    @property
    def loop_inputs(self):
        defaults = {"batch_size": 1, "num_inference_steps": 10, "height": 8, "width": 8, "generator": None}
        return [modular.InputParam(name, default=default) for name, default in defaults.items()]

    @torch.no_grad()
    def __call__(self, components, state):
        asked = self.get_block_state(state)
        components.scheduler.set_timesteps(asked.num_inference_steps)
        shape = (asked.batch_size, 1, asked.height, asked.width)
        asked.latents = torch.randn(shape, generator=asked.generator)
        for i, t in enumerate(self.progress_bar(components.scheduler.timesteps)):
            components, asked = self.loop_step(components, asked, i=i, t=t)
        self.set_block_state(state, asked)
        return components, state


@pytest.fixture(scope="module")
def pipeline():
    torch.manual_seed(0)
    made = Loop().init_pipeline()
    made.update_components(unet=Net().eval(), scheduler=diffusers.DDIMScheduler(clip_sample=False))
    return made


def run(pipeline, output="latents", **arguments):
    return pipeline(**arguments, num_inference_steps=10, generator=torch.Generator().manual_seed(0), output=output)


def check_twin(pipeline, bundle, **arguments):
    plain = run(pipeline, **arguments)
    for engine, bound in ((None, 0.0), (bundle, 1e-4)):
        with zeus_trt.accelerate(pipeline, 0, engine=engine) as twin:
            same = run(twin, **arguments)
            assert twin.report.nfe == 10
        assert float((same - plain).norm() / plain.norm()) <= bound
        with zeus_trt.accelerate(pipeline, 2, engine=engine) as twin:
            skipped = run(twin, **arguments)
            assert twin.report.nfe == 6
        assert 0 < float((skipped - plain).norm() / plain.norm()) < 0.5


def test_the_twin_of_own_blocks_is_theirs_and_runs_by_an_engine(pipeline, tmp_path, capfd):
    bundle = zeus_trt.export(pipeline, tmp_path / "bundle", steps=())
    assert capfd.readouterr().err == ""  # no progress bars of a loop that is only watched
    assert {symbol.name for symbol in bundle.manifest.symbols} == {"batch", "height", "width"}
    assert bundle.manifest.guidance == "sequential"
    check_twin(pipeline, bundle, batch_size=2, height=12)


def test_a_state_that_is_given_goes_on(pipeline):
    state = run(pipeline, output=None)
    with zeus_trt.accelerate(pipeline, 0) as twin:
        assert torch.equal(run(twin, output=None, state=state).get("latents"), state.get("latents"))


def test_what_takes_plain_pipelines_alone_says_so(pipeline, tmp_path):
    for call in (lambda: PipelineWorkload(pipeline, []), lambda: PipelineModel(pipeline, None)):
        with pytest.raises(ZeusError, match=r"pipeline: got a ModularPipeline, which is modular; expected one that is"):
            call()
    (tmp_path / "modular_model_index.json").write_text("{}")
    for call in (open_model, lambda model: zeus_trt.export(model, tmp_path / "bundle")):
        with pytest.raises(ZeusError, match="a modular pipeline; expected one that is not, since the folder"):
            call(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sd3", "sdxl", "flux", "wan"])
def test_families_of_diffusers(family, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    from tiny_pipeline import write_pipeline

    write_pipeline(tmp_path / "model", family)
    pipeline = diffusers.ModularPipeline.from_pretrained(str(tmp_path / "model"))
    pipeline.load_components()
    arguments = {"prompt": "a cat", "height": 64, "width": 64, **({"num_frames": 5} if family == "wan" else {})}
    check_twin(pipeline, zeus_trt.export(pipeline, tmp_path / "bundle", steps=()), **arguments)
