"""Strength is rounded as the pipeline's own family does."""

from types import SimpleNamespace

import diffusers
import pytest

from zeus_trt.export.strength import find_strength_rule
from zeus_trt.runtime.start import find_begin

RULES = {
    "StableDiffusionPipeline": "steps",
    "StableDiffusionXLPipeline": "steps",
    "StableDiffusionInpaintPipeline": "steps",
    "WanPipeline": "steps",
    "CogVideoXPipeline": "steps",
    "StableDiffusion3Pipeline": "begin",
    "StableDiffusion3Img2ImgPipeline": "begin",
    "FluxPipeline": "begin",
    "QwenImagePipeline": "begin",
    "ChromaPipeline": "begin",
    "DiTPipeline": None,
}


@pytest.mark.parametrize(("name", "rule"), RULES.items())
def test_the_rule_of_a_family_is_observed(name, rule):
    pipeline = object.__new__(getattr(diffusers, name))  # its classes are asked, not its parts
    assert find_strength_rule(pipeline) == rule


def follow(cls, num_steps, strength, order):
    scheduler = SimpleNamespace(timesteps=list(range(num_steps * order)), order=order)
    return cls.get_timesteps(SimpleNamespace(scheduler=scheduler), num_steps, strength, "cpu")[0][0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("cls", "rule"),
    [(diffusers.StableDiffusionImg2ImgPipeline, "steps"), (diffusers.FluxImg2ImgPipeline, "begin")],
)
def test_the_first_step_is_that_of_diffusers(cls, rule, order):
    for num_steps in (1, 4, 20, 28, 50):
        for strength in (0.3, 0.35, 0.58, 0.6, 0.77, 0.999, 1.0):
            if rule == "steps" and num_steps * strength < 1:
                continue  # no step is left: refused
            assert find_begin(order, num_steps, strength, rule) == follow(cls, num_steps, strength, order)
