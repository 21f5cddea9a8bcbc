"""Modular pipelines of diffusers: the twin is theirs to the bit at ratio 0, skips, and runs by an engine."""

import json
import sys

import diffusers
import numpy as np
import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner
from diffusers.configuration_utils import register_to_config
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image

import zeus_trt
from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.export.recorder import check_pipeline
from zeus_trt.open_model import open_model
from zeus_trt.pipeline_model import PipelineModel
from zeus_trt.zeus_graph import choose_plan

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
        asked.latents = randn_tensor(shape, generator=asked.generator)
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
    arguments = {"generator": torch.Generator().manual_seed(0), **arguments}
    return pipeline(**arguments, num_inference_steps=10, output=output)


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


@pytest.mark.parametrize("use", [zeus_trt.accelerate, check_pipeline])
def test_one_that_has_not_loaded_its_components_says_so(use):
    with pytest.raises(ZeusError, match=r"with a scheduler and a denoiser. Call its load_components\(\) first"):
        use(Step().init_pipeline())


def test_a_service_of_many_runs_at_a_time_says_that_it_takes_none(pipeline):
    with pytest.raises(ZeusError, match=r"pipeline: got a ModularPipeline, which is modular: runs of it share the"):
        PipelineModel(pipeline, None)


def test_a_workload_makes_its_pictures(pipeline):
    workload = PipelineWorkload(pipeline, [], {"height": 12})
    latents = workload.sample(choose_plan(ratio=0), [0], num_steps=10).latents
    assert torch.equal(latents, run(pipeline, height=12, generator=[torch.Generator().manual_seed(0)]))
    assert workload.sample(choose_plan(ratio=2), [0, 1], num_steps=10).report.nfe == 6
    assert workload.program(10).num_evaluations == 10


def test_a_folder_runs_no_code_of_its_own_and_has_all_its_parts(tmp_path):
    index = {"_class_name": "FluxModularPipeline", "_blocks_class_name": "FluxAutoBlocks"}
    kind = ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    part = {"pretrained_model_name_or_path": str(tmp_path), "subfolder": "scheduler", "type_hint": kind}
    index["scheduler"] = [*kind, part]
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    with pytest.raises(ZeusError, match=r"which does not load .*its scheduler does not load"):
        open_model(tmp_path, prompts=["a cat"])
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    code = json.dumps({"auto_map": {"ModularPipelineBlocks": "own.Own"}})
    for name in ("modular_config.json", "config.json"):
        (tmp_path / name).write_text(code)
    with pytest.raises(ZeusError, match=r"which does not load .*contains custom code"):
        open_model(tmp_path, prompts=["a cat"])
    assert not (tmp_path / "mark").exists()


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


@pytest.mark.slow
def test_a_saved_one_runs_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    from tiny_pipeline import write_pipeline

    write_pipeline(tmp_path / "plain", "flux")
    pipeline = diffusers.ModularPipeline.from_pretrained(str(tmp_path / "plain"))
    pipeline.load_components()
    pipeline.save_pretrained(str(tmp_path / "modular"))
    model, picture = str(tmp_path / "modular"), str(tmp_path / "a.png")
    plain = run(pipeline, "images", prompt="a cat", height=64, width=64, output_type="np")
    done = CliRunner().invoke(
        main, ["run", model, "--prompt", "a cat", "--steps", "10", "--size", "64x64", "--ratio", "0", "-o", picture]
    )
    assert done.exit_code == 0, done.output
    with Image.open(picture) as made:
        assert np.array_equal(np.asarray(made)[4:68, 4:68], np.round(plain[0] * 255))  # in a frame
