"""Code that leaves out what does nothing at some sizes: one graph serves these sizes and all others."""

import diffusers
import pytest
import torch
from tiny_unets import build_sd, one_level_unet, run_sd

from zeus_trt.errors import ZeusError
from zeus_trt.export import Settings, export_model
from zeus_trt.runtime import OnnxRuntimeEngine

ODD, SPECIAL = {"height": 72, "width": 88}, {"height": 64, "width": 128}  # latents of 9x11 and 8x16: 99 and 128 pixels


class Padded(diffusers.UNet2DConditionModel):
    """Pads its pixels to a multiple of 32, as Z-Image does with its tokens, and takes the padding off again."""

    factor = 1.0  # of the output where there is nothing to pad

    def forward(self, sample, timestep, encoder_hidden_states, **kwargs):
        pixels = sample.flatten(2)
        count = -pixels.shape[2] % 32
        if count > 0:
            real = torch.cat([torch.ones_like(pixels), torch.zeros_like(pixels[..., :1]).repeat(1, 1, count)], 2)
            pixels = torch.cat([pixels, pixels[..., -1:].repeat(1, 1, count)], 2) * real
        else:
            pixels = pixels * self.factor
        mixed = pixels + pixels.cumsum(2) * encoder_hidden_states.mean() + timestep.reshape(-1, 1, 1)
        return (mixed[..., : sample.shape[2] * sample.shape[3]].reshape(sample.shape),)


class Different(Padded):
    """Computes something else where there is nothing to pad."""

    factor = 2.0


def export(kind, base, folder):
    torch.manual_seed(0)
    pipeline = build_sd(unet=one_level_unet().eval())
    pipeline.unet.__class__ = kind
    pipeline.set_progress_bar_config(disable=True)
    base = {"batch": 2, "prompt": 7, **base}
    varied = {"batch": 3, "height": base["height"] + 40, "width": base["width"] + 24, "prompt": 11}
    return export_model(pipeline, folder, settings=Settings(base, varied, run=run_sd), steps=())


@pytest.mark.parametrize("base", [pytest.param(ODD, marks=pytest.mark.slow), SPECIAL])
def test_one_graph_pads_and_does_not(base, tmp_path):
    bundle = export(Padded, base, tmp_path / "bundle")
    assert bundle.manifest.relations == ()
    assert {(each["height"] * each["width"] // 64) % 32 == 0 for each in [ODD, SPECIAL]} == {True, False}
    proofs = [record.shape[2] * record.shape[3] % 32 == 0 for record in bundle.manifest.find_graph().verification]
    assert {*proofs} == {True, False}
    engine, text = OnnxRuntimeEngine(bundle.graph(), num_threads=1), torch.full((1, 7, 16), 0.5)
    for shape in [(1, 4, 8, 20), (1, 4, 16, 16), (1, 4, 9, 9)]:
        sample = torch.randn(shape)
        (expected,) = Padded.forward(Padded, sample, torch.tensor([0.25]), text)
        got = engine(sample=sample, timestep=torch.tensor([0.25]), encoder_hidden_states=text)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("base", "relation"), [(ODD, "> 0"), pytest.param(SPECIAL, "== 0", marks=pytest.mark.slow)])
def test_a_graph_of_one_branch_refuses_the_sizes_of_another(base, relation, tmp_path):
    bundle = export(Different, base, tmp_path / "bundle")
    (found,) = bundle.manifest.relations
    assert str(found).endswith(f"% 32 {relation}")
    assert found.origin.startswith("test_special_sizes.py:")
    engine, shape = OnnxRuntimeEngine(bundle.graph(), num_threads=1), (8, 16) if base is ODD else (9, 11)
    with pytest.raises(ZeusError, match="% 32 "):
        engine(sample=torch.zeros(1, 4, *shape), timestep=torch.ones(1), encoder_hidden_states=torch.zeros(1, 7, 16))
