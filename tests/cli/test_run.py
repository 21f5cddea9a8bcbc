"""`zeus-trt run`, with bundles and with pipelines."""

import json
import runpy

import diffusers
import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner
from PIL import Image
from tiny_images import build_dit

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.workload import Setting
from zeus_trt.export.loading import load_pipeline
from zeus_trt.media import check_kind, write_media
from zeus_trt.runtime import Bundle
from zeus_trt.zeus_graph import Plan


@pytest.fixture(scope="module")
def folder(tiny_pipeline):
    return tiny_pipeline


@pytest.fixture(scope="module")
def bundle(export_tiny_pipeline):
    return export_tiny_pipeline().path


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


def test_image_to_image_of_a_family_that_takes_a_size_and_a_picture_per_prompt(tmp_path):
    runpy.run_path(str(ROOT / "examples" / "tiny_pipeline.py"))["write_pipeline"](tmp_path / "sd3", "sd3")
    Image.new("RGB", (70, 100)).save(tmp_path / "in.png")
    common = (tmp_path / "sd3", "--prompt", "a", "--prompt", "b", "--image", tmp_path / "in.png", "--strength", 0.5)
    for size, expected in (((), (2 * 64, 96)), (("--size", "80x48"), (2 * 48, 80))):
        done = run(*common, *size, "--steps", 4, "-o", tmp_path / "out.png")
        assert done.exit_code == 0, done.output
        with Image.open(tmp_path / "out.png") as picture:
            assert picture.size == expected


def test_a_pipeline_whose_own_call_takes_a_picture_keeps_it(folder, tmp_path):
    parts = diffusers.DiffusionPipeline.from_pretrained(folder).components
    net = diffusers.ControlNetModel.from_unet(parts["unet"])
    for name, pipeline in {
        "controlled": diffusers.StableDiffusionControlNetPipeline(
            **parts, controlnet=net, requires_safety_checker=False
        ),
        "inpaint": diffusers.StableDiffusionInpaintPipeline(**parts, requires_safety_checker=False),
    }.items():
        pipeline.save_pretrained(tmp_path / name)
    Image.new("RGB", (100, 80), (200, 30, 30)).save(tmp_path / "red.png")
    common = ("--prompt", "a", "--image", tmp_path / "red.png", "--steps", 4, "-o", tmp_path / "out.png")
    refused = run(tmp_path / "inpaint", *common)
    assert refused.exit_code == 1
    assert "Error: --image: got one for a StableDiffusionInpaintPipeline, which needs a mask_image" in refused.output
    done = run(tmp_path / "controlled", *common)
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (96, 80)


def test_class_labels_of_a_pipeline(tmp_path):
    build_dit().save_pretrained(tmp_path / "dit")
    common = (tmp_path / "dit", "--steps", 4, "-o", tmp_path / "out.png")
    for words, said in (
        (("--label", "3,1000"), "--label: got 1000; expected 0..999"),
        (("--label", -1), "--label: got -1; expected 0..999"),
        (("--prompt", "cat"), "--prompt: got it for a DiTPipeline; expected labels"),
        (("--label", 3, "--size", "64x64"), "--size: got it for a DiTPipeline; expected some of guidance_scale"),
    ):
        refused = run(*common, *words)
        assert refused.exit_code == 1
        assert f"Error: {said}" in refused.output
    done = run(*common, "--label", "3,999")
    assert done.exit_code == 0, done.output


PICTURE = ROOT / "benchmarks" / "results" / "demo.png"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--prompt: got nothing"),
        (("--prompt", "a", "--frames", 9), "--frames: got it for a StableDiffusionPipeline; expected some of g"),
        (("--prompt", "a", "--size", "63x64"), "pipeline: got arguments that a StableDiffusionPipeline refuses"),
        (("--prompt", "a", "--backend", "onnxruntime"), "--backend: got onnxruntime for a pipeline alone"),
        (("--prompt", "a", "--size", "80000000x80000000"), "pictures: got "),
        (("--prompt", "a", "--image", "none.png"), "--image: got none.png, which does not read"),
        (
            ("--prompt", "a", "--image", PICTURE, "--size", "64x64", "--strength", 0.1),
            "--strength: got 0.1 of 8 steps, which leaves none; expected at least 0.12",
        ),
        (("--prompt", "a", "--dtype", "int8"), "--dtype: got int8"),
        (("--prompt", "a", "--device", "warp"), "--device: got warp, which does not compute here; expected cpu"),
        (("--prompt", "a", "--device", "meta"), "--device: got meta, which does not compute here; expected cpu"),
        (("--label", 3), "--label: got it for a StableDiffusionPipeline; expected prompts"),
        (("--prompt", "a", "--label", 3), "--prompt: got prompts and labels"),
        (("--prompt", "a", "--prompt", "b", "--num-images", 1), "--num-images: got 1 for 2 prompts"),
        (("--prompt", "a", "--engine", "some", "--backend", "eager"), "--engine: got it with the backend eager"),
        (("--prompt", "a", "--plan", ""), "--plan: got no steps"),
        (("--prompt", "a", "--plan", "FFXF"), "--plan: got 4 steps; expected 8"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, arguments, said):
    done = run(folder, *arguments, "--steps", 8, "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert f"Error: {said}" in done.output
    assert isinstance(done.exception, SystemExit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere/out.png", "which cannot be written (No such file or directory)"),
        ("folder.png", "folder.png, which cannot be written (Is a directory)"),
        ("other.png", "other-full.png, which cannot be written (Is a directory)"),
        ("out.psd", "got out.psd; expected a picture's name"),
        ("out.mp4", "got out.mp4 for pictures"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_run(folder, tmp_path, monkeypatch, name, said):
    monkeypatch.setattr(PipelineWorkload, "sample", lambda *args, **options: pytest.fail("it sampled"))
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "other-full.png").mkdir()
    done = run(folder, "--prompt", "a", "--compare-full", "-o", tmp_path / name)
    assert done.exit_code == 1
    assert said in done.output


def test_options_of_pipelines_are_refused_for_a_bundle(bundle, tmp_path):
    done = run(bundle, "--prompt", "a", "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert "--prompt: got it for a bundle" in done.output
    done = run(bundle, "--image", PICTURE, "--engine", "some", "-o", tmp_path / "out.png")
    assert "--image: got it for a bundle" in done.output
    done = run(tmp_path / "mistyped", "--prompt", "a", "-o", tmp_path / "out.png")
    assert f"bundle: got {tmp_path / 'mistyped'} without a readable manifest.json" in done.output


def test_videos(tmp_path):
    frames = torch.linspace(-1, 1, 5)[None, :, None, None, None].expand(2, 5, 3, 72, 80)
    write_media(frames, tmp_path / "out.gif")
    with Image.open(tmp_path / "out.gif") as video:
        assert (video.n_frames, video.size) == (5, (160, 72))
    with pytest.raises(ZeusError, match=r"got out.png for a video"):
        write_media(frames, tmp_path / "out.png")
    with pytest.raises(ZeusError, match=r"got out.mp4 for pictures"):
        write_media(frames[:, 0], tmp_path / "out.mp4")


def test_a_video_into_mp4_wants_its_library(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZeusError, match="expected imageio"):
        check_kind(tmp_path / "out.mp4", is_video=True)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 32, 32), (72, 72)), ((3, 256, 64), (64, 256)), ((3, 64, 16), (72, 264)), ((3, 16, 64), (264, 72))],
)
def test_pictures_keep_their_shape(tmp_path, shape, size):
    write_media(torch.zeros(1, *shape), tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == size


@pytest.mark.parametrize(("ending", "width"), [("jpg", 66_000), ("webp", 17_000), ("gif", 66_000)])
def test_pictures_that_a_format_has_no_room_for(tmp_path, ending, width):
    with pytest.raises(ZeusError, match=f"got {width}x2 pixels for {ending[0].upper()}"):
        write_media(torch.zeros(1, 1, 2, width), tmp_path / f"out.{ending}")
    assert not list(tmp_path.iterdir())


def test_samples_of_a_pipeline_go_by_number(folder, bundle):
    workload = PipelineWorkload(
        load_pipeline(folder), ["a", "b", "c"], {"height": 64, "width": 64}, bundle=Bundle.open(bundle)
    )
    total = workload.count_evaluations(8, "heun")
    assert total == 15
    program = workload.program(8)
    assert program.num_evaluations == workload.count_evaluations(8) == 8
    setting = Setting(Plan.uniform(8, 2), 8, backend="eager")
    both, one = workload.run(setting, [1, 5]), workload.run(setting, [5])
    assert (both.latents[1] - one.latents[0]).norm() < 1e-4 * one.latents.norm()
    assert both.images.shape == (2, 3, 64, 64)
    assert one.report.nfe == setting.plan.nfe
    engine = workload.run(Setting(setting.plan, 8, backend="onnxruntime"), [5])
    assert (engine.latents - one.latents).norm() < 1e-4 * one.latents.norm()
