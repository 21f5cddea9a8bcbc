"""`zeus-trt run` from prompts to files, with tiny pipelines of every family that the example writes."""

import functools
import json
import runpy
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner
from PIL import Image, ImageSequence

from zeus_trt import sampling
from zeus_trt.cli import main
from zeus_trt.media import write_media

HEIGHT, WIDTH, FRAMES = 64, 96, 9
STEPS, PLAN = 12, "FFFFXRFXRFFF"
VIDEOS = ("wan", "cogvideox")
FAMILIES = ["sd", "sdxl", "sd3", "flux", "cogvideox", "wan"]
write_pipeline = runpy.run_path(str(ROOT / "examples" / "tiny_pipeline.py"))["write_pipeline"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a family's pipeline, once."""

    @functools.cache
    def write(family):
        made = tmp_path_factory.mktemp("families") / f"tiny {family}"
        write_pipeline(made, family)
        return made

    return write


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Runs the command; gives the first file, its samples before they were written, and the report."""
    written = []

    def write(images, path):
        written.append(images)
        write_media(images, path)

    monkeypatch.setattr(sampling, "write_media", write)

    def call(family, *arguments):
        output = tmp_path / f"out.{'gif' if family in VIDEOS else 'png'}"
        frames = ("--frames", FRAMES) if family in VIDEOS else ()
        given = [folder(family), "--size", f"{HEIGHT}x{WIDTH}", *frames, "--json", "-o", output, *arguments]
        written.clear()
        done = CliRunner().invoke(main, ["run", *map(str, given)])
        assert done.exit_code == 0, done.output
        report = SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))
        return SimpleNamespace(output=output, images=written[0], report=report)

    return call


def call_plainly(pipeline, family, count, **arguments):
    """The pixels of the diffusers pipeline itself, -1..1, image k from seed 3 + k."""
    pipeline.set_progress_bar_config(disable=True)
    if family in VIDEOS:
        arguments["num_frames"] = FRAMES
    generators = [torch.Generator().manual_seed(3 + number) for number in range(count)]
    output = pipeline(num_inference_steps=STEPS, generator=generators, output_type="pt", **arguments)
    return (2 * output[0] - 1).clamp(-1, 1)


def export(folder, bundle):
    """Exports by command, and gives the bundle."""
    done = CliRunner().invoke(main, ["export", str(folder), "-o", str(bundle), "--size", f"{HEIGHT}x{WIDTH}"])
    assert done.exit_code == 0, done.output
    return bundle


def read_frames(file):
    with Image.open(file) as opened:
        return np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened)])


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_skipped_is_the_pipeline_called_plainly(folder, run, family):
    own = {"prompt": ["a cat", "a dog"], "guidance_scale": 3.0}
    negative = family != "flux"  # which has no classifier-free guidance
    own |= {"negative_prompt": ["b", "b"]} if negative else {}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder(family))
    expected = call_plainly(pipeline, family, 2, height=HEIGHT, width=WIDTH, **own)
    made = run(
        family, "--prompt", "a cat", "--prompt", "a dog", *(["--negative-prompt", "b"] if negative else []),
        "--guidance-scale", 3, "--steps", STEPS, "--ratio", 0, "--seed", 3,
    )  # fmt: skip
    assert made.report.plan == "F" * STEPS
    assert made.report.nfe == STEPS
    assert made.images.isfinite().all()
    assert torch.equal(made.images, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_skipped_run_and_the_full_one_beside_it_in_files(run, family):
    made = run(family, "--prompt", "a cat", "--prompt", "a dog", "--steps", STEPS, "--ratio", 2, "--compare-full")
    assert (made.report.plan, made.report.nfe, made.report.backend) == (PLAN, PLAN.count("F"), "eager")
    count = FRAMES if family in VIDEOS else 1
    skipped = read_frames(made.output)
    full = read_frames(made.output.with_name(f"out-full{made.output.suffix}"))
    assert skipped.shape == full.shape == (count, HEIGHT, 2 * WIDTH, 3)
    assert skipped.std() > 5  # neither black nor grey
    assert 0 < np.abs(skipped.astype(float) - full).mean() < full.std() / 2


@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3", "flux"])
def test_image_to_image_is_the_pipeline_called_plainly(folder, run, tmp_path, family):
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "in.png")
    pipeline = diffusers.AutoPipelineForImage2Image.from_pretrained(folder(family))
    size = {"height": HEIGHT, "width": WIDTH} if family in ("sd3", "flux") else {}
    expected = call_plainly(pipeline, family, 2, prompt=["a cat", "a dog"], image=[image] * 2, strength=0.5, **size)
    made = run(
        family, "--prompt", "a cat", "--prompt", "a dog", "--image", tmp_path / "in.png", "--strength", 0.5, "--steps",
        STEPS, "--ratio", 0, "--seed", 3,
    )  # fmt: skip
    assert made.report.plan == "F" * (STEPS // 2)
    assert torch.equal(made.images, expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_of_an_export_makes_the_same_pixels(folder, run, tmp_path, family):
    bundle = export(folder(family), tmp_path / "bundle")
    for more in ((), ("--prompt", "a dog"), ("--guidance-scale", 1)):
        asked = ("--prompt", "a cat", "--steps", STEPS, "--ratio", 2, *more)
        eager = run(family, *asked)
        engine = run(family, *asked, "--engine", bundle)
        assert engine.report.backend == "onnxruntime"
        assert engine.report.plan == eager.report.plan == PLAN
        assert (engine.images - eager.images).norm() < 1e-4 * eager.images.norm()
