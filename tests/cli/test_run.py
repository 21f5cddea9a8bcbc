"""`zeus-trt run`, with bundles and with pipelines."""

import json
import subprocess
import sys

import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner
from PIL import Image

from zeus_trt.calibration.pipeline_workload import PipelineWorkload
from zeus_trt.calibration.workload import Setting
from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export import export_pipeline
from zeus_trt.export.loading import load_pipeline
from zeus_trt.media import write_media
from zeus_trt.runtime import Bundle
from zeus_trt.zeus_graph import StepPlan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny pipeline of the examples, on disk."""
    made = tmp_path_factory.mktemp("tiny") / "tiny sd"
    subprocess.run([sys.executable, ROOT / "examples" / "tiny_pipeline.py", made], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory):
    return export_pipeline(folder, tmp_path_factory.mktemp("bundles") / "sd", steps=()).path


def run(*arguments):
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


def test_a_pipeline_from_prompts_to_a_picture_and_the_full_run_beside_it(folder, tmp_path):
    done = run(
        folder, "--prompt", "a cat", "--steps", 12, "--ratio", 3, "--size", "128x192", "--compare-full", "--json", "-o",
        tmp_path / "cat.png",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["plan"], report["nfe"], report["backend"]) == ("FFFFXRXFXRFF", 7, "eager")
    for name in ("cat.png", "cat-full.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (192, 128)
    assert (tmp_path / "cat.png").read_bytes() != (tmp_path / "cat-full.png").read_bytes()


def test_its_engine_makes_the_same_picture(folder, bundle, tmp_path):
    common = (folder, "--prompt", "a cat", "--prompt", "a dog", "--steps", 8, "--ratio", 2, "--negative-prompt", "a")
    assert run(*common, "-o", tmp_path / "eager.png").exit_code == 0
    done = run(*common, "--engine", bundle, "-o", tmp_path / "engine.png")
    assert done.exit_code == 0, done.output
    assert "onnxruntime" in done.output
    eager, engine = (torch.tensor(list(Image.open(tmp_path / f"{n}.png").tobytes())) for n in ("eager", "engine"))
    assert (eager - engine).abs().max() <= 1


def test_image_to_image(folder, tmp_path):
    Image.new("RGB", (100, 80), (200, 30, 30)).save(tmp_path / "red.png")
    done = run(
        folder, "--prompt", "a cat", "--image", tmp_path / "red.png", "--strength", 0.5, "--size", "64x128", "--steps",
        20, "--json", "-o", tmp_path / "out.png",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout.splitlines()[-1])["plan"]) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "prompt: got none"),
        (("--prompt", "a", "--frames", 9), "num_frames: got it for a StableDiffusionPipeline"),
        (("--prompt", "a", "--size", "63x64"), "pipeline: got arguments that a StableDiffusionPipeline refuses"),
        (("--prompt", "a", "--backend", "onnxruntime"), "got onnxruntime for a pipeline alone"),
        (("--prompt", "a", "--image", "none.png"), "image: got none.png, which does not read"),
        (("--prompt", "a", "--dtype", "int8"), "dtype: got int8"),
        (("--prompt", "a", "--plan", "FFXF"), "plan: got 4 steps; expected 8"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, arguments, said):
    done = run(folder, *arguments, "--steps", 8, "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_a_prompt_for_a_bundle_is_refused(bundle, tmp_path):
    done = run(bundle, "--prompt", "a", "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert "prompts: got it for a bundle" in done.output


def test_videos(tmp_path):
    frames = torch.linspace(-1, 1, 5)[None, :, None, None, None].expand(2, 5, 3, 72, 80)
    write_media(frames, tmp_path / "out.gif")
    with Image.open(tmp_path / "out.gif") as video:
        assert (video.n_frames, video.size) == (5, (160, 72))
    with pytest.raises(ZeusError, match=r"got out.png for a video"):
        write_media(frames, tmp_path / "out.png")
    with pytest.raises(ZeusError, match=r"got out.mp4 for pictures"):
        write_media(frames[:, 0], tmp_path / "out.mp4")


def test_samples_of_a_pipeline_go_by_number(folder, bundle):
    workload = PipelineWorkload(
        load_pipeline(folder), ["a", "b", "c"], {"height": 64, "width": 64}, bundle=Bundle.open(bundle)
    )
    total = workload.count_evaluations(8, "heun")
    assert total == 15
    program = workload.program(8)
    assert program.num_evaluations == workload.count_evaluations(8) == 8
    setting = Setting(StepPlan.uniform(8, 2), 8, backend="eager")
    both, one = workload.run(setting, [1, 5]), workload.run(setting, [5])
    assert (both.latents[1] - one.latents[0]).norm() < 1e-4 * one.latents.norm()
    assert both.images.shape == (2, 3, 64, 64)
    assert one.report.nfe == setting.plan.nfe
    engine = workload.run(Setting(setting.plan, 8, backend="onnxruntime"), [5])
    assert (engine.latents - one.latents).norm() < 1e-4 * one.latents.norm()
