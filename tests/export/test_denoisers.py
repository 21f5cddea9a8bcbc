"""Which component is a pipeline's denoiser: found by what it does."""

import diffusers
import pytest
import torch
from pipelines import FAMILIES
from tiny_unets import build_sd

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import capture
from zeus_trt.export.denoisers import choose_denoiser, watch
from zeus_trt.export.runs import Settings


def find(family):
    pipeline = FAMILIES[family].make()
    return choose_denoiser(pipeline, lambda proxy: FAMILIES[family].run(proxy, **FAMILIES[family].base))


@pytest.mark.parametrize(
    ("family", "name"), [("inpaint", "unet"), ("sd3", "transformer"), ("wan", "transformer"), ("dit", "transformer")]
)
def test_a_denoiser_is_found(family, name):
    assert find(family) == name


class Renamed(diffusers.DiffusionPipeline):
    """A loop whose denoiser has a name of its own, beside a network that reads what the denoiser answers."""

    def __init__(self, painter, critic, guide, scheduler):
        super().__init__()
        self.register_modules(painter=painter, critic=critic, guide=guide, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, batch, prompt=None, num_inference_steps=3, add=False):
        self.scheduler.set_timesteps(num_inference_steps)
        text, latents = torch.ones(batch, 7, 16), torch.randn(batch, 4, 8, 8)
        for time in self.scheduler.timesteps:
            hint = self.guide(latents, time, text)[0]
            noise = self.painter(latents + hint, time, text)[0]
            self.critic(noise, time, text)
            latents = self.scheduler.step(noise + hint if add else noise, time, latents).prev_sample
        return (latents,)


@pytest.fixture
def renamed():
    networks = [build_sd().unet.eval() for _ in range(3)]
    return Renamed(*networks, diffusers.DDIMScheduler(clip_sample=False))


def test_a_denoiser_of_any_name_is_found_beside_networks_that_feed_it_or_read_it(renamed):
    assert watch(renamed, lambda proxy: proxy(2)).called == ["guide", "painter", "critic"]
    assert capture(renamed, Settings({"batch": 2}, {"batch": 3})).component == "painter"


def test_two_denoisers_are_named(renamed):
    with pytest.raises(ZeusError, match=r"several denoisers; expected one of guide, painter\. Name it"):
        choose_denoiser(renamed, lambda proxy: proxy(2, add=True))


def test_a_pipeline_of_pipelines_is_refused_before_it_runs(renamed):
    renamed.prior_pipe = build_sd()
    with pytest.raises(ZeusError, match="made of the pipelines prior_pipe"):
        capture(renamed, Settings({"batch": 2}, {"batch": 3}))


def test_a_loop_without_a_network_is_refused(renamed):
    renamed.painter = renamed.guide = renamed.critic = None
    with pytest.raises(ZeusError, match="got a Renamed with scheduler; expected a diffusers pipeline with"):
        capture(renamed, Settings({"batch": 2}, {"batch": 3}))
    with pytest.raises(ZeusError, match="whose solver steps on the output of none of its components"):
        choose_denoiser(renamed, lambda _: None)


def test_everything_is_as_it_was(renamed):
    before, classes = dict(vars(renamed)), [type(part) for part in renamed.components.values()]
    state = torch.get_rng_state()
    choose_denoiser(renamed, lambda proxy: proxy(2))
    assert vars(renamed) == before
    assert [type(part) for part in renamed.components.values()] == classes
    assert torch.equal(torch.get_rng_state(), state)
