"""What pipelines multiply the solver's timesteps with, how they guide, and what our loop refuses."""

import pytest
import torch
from pipelines import FAMILIES
from tiny_images import build_lumina, run_lumina
from tiny_unets import run_sd

from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Settings
from zeus_trt.export.timestep import find_timestep_scale


@pytest.mark.parametrize(
    ("family", "scale", "guidance"),
    [
        ("sd15", 1.0, "batched"), ("sdxl-refiner", 1.0, "batched"), ("dit", 1.0, "batched"), ("sana", 1.0, "batched"),
        ("flux", 0.001, "embedded"), ("flux-no-guidance", 0.001, "sequential"), ("hunyuan", 1.0, "embedded"),
        ("wan", 1.0, "sequential"), ("wan22-ti2v", 1.0, "sequential"), ("cogvideox", 1.0, "batched"),
    ],
)  # fmt: skip
def test_observed_with_the_capture(family, scale, guidance):
    captured = capture(FAMILIES[family].make(), FAMILIES[family].settings)
    assert (captured.border.timestep_scale, captured.guidance) == (scale, guidance)
    assert captured.guidance_factor == {"flux": 1.0, "hunyuan": 1000.0}.get(family)


def test_the_models_own_scale():
    sana = FAMILIES["sana"].make()
    sana.transformer.register_to_config(timestep_scale=0.002)
    assert capture(sana, FAMILIES["sana"].settings).border.timestep_scale == 0.002


def test_no_multiple():
    lumina = build_lumina()
    lumina.set_progress_bar_config(disable=True)
    base = {"batch": 2, "height": 64, "width": 96, "prompt": 7}
    captured = capture(lumina, Settings(base, {"batch": 3}, run=run_lumina))
    assert captured.guidance == "sequential"
    assert captured.border.unsteppable == "it reads a time that is no multiple of the solver's timestep"


def test_without_guidance():
    family = FAMILIES["sd15"]

    def run(pipeline, **setting):
        run_sd(pipeline, **setting, guidance_scale=1.0)

    captured = capture(family.make(), Settings(family.base, family.varied, run=run))
    assert (captured.border.timestep_scale, captured.guidance) == (1.0, "none")


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
