"""What pipelines multiply the solver's timesteps with, how they guide, and what our loop refuses."""

import dataclasses

import pytest
import torch
from pipelines import FAMILIES
from tiny_images import build_lumina, run_lumina
from tiny_unets import run_sd

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Settings
from zeus_trt.export.timestep import find_timestep_scale
from zeus_trt.runtime import Bundle, Session


@pytest.mark.parametrize(
    ("family", "scale", "guidance"),
    [
        ("sd15", 1.0, "batched"), ("sdxl-refiner", 1.0, "batched"), ("dit", 1.0, "batched"), ("sana", 1.0, "batched"),
        ("flux", 0.001, "embedded"), ("flux-no-guidance", 0.001, "sequential"), ("hunyuan", 1.0, "embedded"),
        ("wan", 1.0, "sequential"), ("wan22-ti2v", None, "sequential"), ("cogvideox", 1.0, "batched"),
    ],
)  # fmt: skip
def test_observed_with_the_capture(family, scale, guidance):
    captured = capture(FAMILIES[family].make(), FAMILIES[family].settings)
    assert (captured.timestep_scale, captured.guidance) == (scale, guidance)
    assert captured.guidance_factor == {"flux": 1.0, "hunyuan": 1000.0}.get(family)


def test_the_models_own_scale():
    sana = FAMILIES["sana"].make()
    sana.transformer.register_to_config(timestep_scale=0.002)
    assert capture(sana, FAMILIES["sana"].settings).timestep_scale == 0.002


def test_no_multiple():
    lumina = build_lumina()
    lumina.set_progress_bar_config(disable=True)
    base = {"batch": 2, "height": 64, "width": 96, "prompt": 7}
    captured = capture(lumina, Settings(base, {"batch": 3}, run=run_lumina))
    assert (captured.timestep_scale, captured.guidance) == (None, "sequential")


def test_without_guidance():
    family = FAMILIES["sd15"]

    def run(pipeline, **setting):
        run_sd(pipeline, **setting, guidance_scale=1.0)

    captured = capture(family.make(), Settings(family.base, family.varied, run=run))
    assert (captured.timestep_scale, captured.guidance) == (1.0, "none")


def test_a_factor_that_is_read_off_halves():
    times = [1000.0, 731.2, 402.7]
    for dtype in (torch.float16, torch.bfloat16):
        told = [torch.full((2,), time).to(dtype) / 1000 for time in times]
        assert find_timestep_scale(times, told) == 0.001
        assert find_timestep_scale(times, [1 - rows for rows in told]) is None


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([None, None], [[1.0, 1.0], [0.5, 0.5]]),
        ([2.0, None], [[1.0], [0.5]]),
        ([0.0, 1.0], [[0.0], [0.5]]),
        ([2.0, 1.0], [[1.0, 1.1], [0.5, 0.5]]),
        ([2.0, 1.0], [[1.0], [0.51]]),
        ([2.0], [[[1.0]]]),
    ],
)
def test_unknown(times, told):
    assert find_timestep_scale(times, [torch.tensor(rows) for rows in told]) is None


def test_the_loop_tells_the_denoiser_the_scaled_time(digits_bundle):
    bundle, told = Bundle.open(digits_bundle("unet-flow")), []

    def engine(**inputs):
        told.append(float(inputs["timestep"][0]))
        return inputs["sample"]

    scaled = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, timestep_scale=0.001))
    session = Session(scaled, engine=engine)
    labels = {"class_labels": torch.tensor([1])}
    for mode in ("step", "program"):
        session.generate(labels, plan=session.plan(20, 2), num_steps=20, mode=mode)
    assert told[0] == pytest.approx(1.0)
    assert max(told) <= 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timestep_scale": None}, "no multiple of the timestep"),
        ({"state_axes": ("batch", 4, 32, 32)}, "and solver latents of"),
    ],
)
def test_what_would_make_a_wrong_picture_is_refused(digits_bundle, change, reason):
    bundle = Bundle.open(digits_bundle("unet-flow"))
    session = Session(dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, **change)))
    with pytest.raises(ZeusError, match=reason):
        session.generate({"class_labels": torch.tensor([1])}, plan=session.plan(20, 2), num_steps=20)
