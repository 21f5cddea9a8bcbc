"""An independent implementation's figures for the digits models, through our engine, loop and predictors."""

import json
from functools import cache

import diffusers
import pytest
import torch
from checkout import ROOT

from zeus_trt.evaluation import measure_psnr

REFERENCE = json.loads((ROOT / "tests" / "reference" / "digits.json").read_text())["rows"]
EULER, DPM, FLOW = "EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
QUICK = [("unet-flow", FLOW, 20, 3, "zeus-paper")]  # the others repeat it with other models, steps and predictors
OTHERS = [
    ("dit-flow", FLOW, 20, 4, "zeus-paper"),
    ("unet-epsilon", EULER, 20, 2, "zeus-paper"),
    ("unet-v", DPM, 20, 4, "zeus-paper"),
    ("unet-epsilon", EULER, 20, 4, "zeus-paper"),
    ("unet-epsilon", DPM, 20, 3, "zeus-paper"),
    ("unet-v", EULER, 50, 3, "zeus-paper"),
    ("unet-v", EULER, 50, 3, "zeus-previous-full"),
    ("unet-v", EULER, 50, 4, "reuse"),
    ("unet-flow", FLOW, 50, 2, "zeus-paper"),
    ("unet-flow", FLOW, 50, 3, "zeus-previous-full"),
    ("unet-flow", FLOW, 50, 4, "extrapolate"),
    ("dit-flow", FLOW, 50, 3, "zeus-paper"),
    ("dit-flow", FLOW, 50, 2, "reuse"),
]
SETTINGS = ("model", "scheduler", "num_steps", "ratio", "predictor")
LABELS = torch.arange(20) % 10


def read_row(*settings):
    wanted = dict(zip(SETTINGS, (f"digits-{settings[0]}", *settings[1:]), strict=True))
    return next(row for row in REFERENCE if all(row[key] == value for key, value in wanted.items()))


@pytest.fixture(scope="module")
def run(open_session):
    @cache
    def open_with(model, scheduler):
        config = {} if scheduler == FLOW else {
            "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "timestep_spacing": "linspace",
            "prediction_type": {"unet-epsilon": "epsilon", "unet-v": "v_prediction"}[model],
        }  # fmt: skip
        return open_session(model, getattr(diffusers, scheduler)(**config))

    @cache
    def make(model, scheduler, num_steps, ratio, predictor, num_images=20):
        session = open_with(model, scheduler)
        plan = session.plan(num_steps, ratio)
        labels = {"class_labels": LABELS[:num_images]}
        return session.generate(labels, plan=plan, num_steps=num_steps, guidance_scale=2.0, seed=7, predictor=predictor)

    return make


@pytest.mark.parametrize("settings", [*QUICK, *(pytest.param(row, marks=pytest.mark.slow) for row in OTHERS)], ids=str)
@pytest.mark.extra
def test_figures_of_the_reference(run, settings):
    model, scheduler, num_steps, _, _ = settings
    expected = read_row(*settings)
    full, skipped = run(model, scheduler, num_steps, 0, "zeus"), run(*settings)
    assert full.report.nfe == num_steps
    assert skipped.report.nfe == expected["nfe"]
    assert measure_psnr(skipped.latents, full.latents) == pytest.approx(expected["psnr_db"], abs=0.3)


def test_zeus_takes_the_better_reading_at_every_ratio(run):
    for ratio, reading in ((2, "zeus-paper"), (3, "zeus-previous-full")):
        skipped = run("unet-flow", FLOW, 20, ratio, "zeus", 2)
        assert torch.equal(skipped.latents, run("unet-flow", FLOW, 20, ratio, reading, 2).latents)
    assert not torch.equal(skipped.latents, run("unet-flow", FLOW, 20, 3, "zeus-paper", 2).latents)
