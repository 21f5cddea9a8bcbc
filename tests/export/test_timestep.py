"""What pipelines multiply the scheduler's timesteps with, and what our loop refuses."""

import dataclasses

import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.timestep import find_timestep_scale
from zeus_trt.runtime import Bundle, Session


@pytest.mark.parametrize(
    ("family", "component", "scale"),
    [("sd15", "unet", 1.0), ("sdxl-refiner", "unet", 1.0), ("flux", "transformer", 0.001), ("wan", "transformer", 1.0),
     ("wan22-ti2v", "transformer", None)],
)  # fmt: skip
def test_the_factor_is_observed(family, component, scale):
    found = FAMILIES[family]
    assert find_timestep_scale(found.make(), component, "timestep", found.settings) == scale


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
        ({"state_axes": ("batch", 4, 32, 32)}, "expected equal ones"),
    ],
)
def test_what_would_make_a_wrong_picture_is_refused(digits_bundle, change, reason):
    bundle = Bundle.open(digits_bundle("unet-flow"))
    session = Session(dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, **change)))
    with pytest.raises(ZeusError, match=reason):
        session.generate({"class_labels": torch.tensor([1])}, plan=session.plan(20, 2), num_steps=20)
