"""Quality figures against their formulas."""

import math
import types

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation import measure_psnr, measure_ssim, perceptual
from zeus_trt.evaluation.quality import Quality, measure_latent_error, measure_quality, measure_temporal_psnr


def test_psnr_is_the_mean_over_images_of_clamped_pixels():
    reference = torch.zeros(2, 1, 16, 16)
    images = reference + torch.tensor([0.1, 0.2])[:, None, None, None]
    expected = (10 * math.log10(4 / 0.01) + 10 * math.log10(4 / 0.04)) / 2
    assert measure_psnr(images, reference) == pytest.approx(expected, abs=1e-4)
    assert measure_psnr(torch.full_like(images, 7.0), torch.ones_like(images)) == math.inf


def test_psnr_does_not_call_a_batch_equal_because_one_image_is():
    reference = torch.zeros(2, 1, 16, 16)
    images = reference + torch.tensor([0.0, 0.2])[:, None, None, None]
    assert measure_psnr(images, reference) == pytest.approx(10 * math.log10(4 / 0.04), abs=1e-4)


def test_ssim_of_equal_images_is_one_and_falls_with_noise():
    images = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    assert measure_ssim(images, images) == pytest.approx(1.0)
    assert measure_ssim(images.roll(7, 3), images) < 0.5


def test_latent_error_is_relative():
    reference = torch.ones(2, 4, 8, 8)
    assert measure_latent_error(1.1 * reference, reference) == pytest.approx(0.1, rel=1e-5)


def test_temporal_psnr_sees_flicker_that_frames_do_not():
    video = torch.zeros(1, 4, 1, 16, 16)
    shifted = video + 0.1
    flickering = shifted * torch.tensor([1.0, -1.0, 1.0, -1.0])[None, :, None, None, None]
    assert measure_psnr(shifted[0], video[0]) == pytest.approx(measure_psnr(flickering[0], video[0]))
    assert measure_temporal_psnr(shifted, video) == math.inf
    assert measure_temporal_psnr(flickering, video) == pytest.approx(10 * math.log10(16 / 0.04), abs=1e-4)


def test_videos_are_measured_by_frame_and_images_have_no_motion():
    noise = torch.randn(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0)) / 4
    video = measure_quality(noise, noise, noise * 0.9, noise)
    frames = measure_quality(noise, noise, (noise * 0.9).flatten(0, 1), noise.flatten(0, 1))
    assert (video.psnr_db, video.ssim) == (frames.psnr_db, frames.ssim)
    assert video.temporal_psnr_db is not None
    assert frames.temporal_psnr_db is None


def test_only_what_is_asked_for_is_measured():
    images = torch.rand(2, 1, 16, 16)
    assert measure_quality(images, images, images, images, ("latent-error",)) == Quality(latent_error=0.0)
    assert measure_quality(images, images, images[..., :8], images[..., :8]).ssim is None
    with pytest.raises(ZeusError, match="expected some of psnr, ssim"):
        measure_quality(images, images, images, images, ("beauty",))


def test_images_of_different_sizes_are_refused():
    images = torch.rand(2, 1, 16, 16)
    for measure in (measure_psnr, measure_ssim):
        with pytest.raises(ZeusError, match="got 2x1x16x8 beside a reference of 2x1x16x16"):
            measure(images[..., :8], images)
    with pytest.raises(ZeusError, match="expected one size"):
        measure_quality(images, images, images[..., :8], images)


def test_lpips_and_fid_say_what_they_miss(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(perceptual.importlib.util, "find_spec", lambda name: None)
    assert perceptual.explain_absence("lpips") == (
        "lpips: not available: needs the package torchvision, which is not installed"
    )
    monkeypatch.setattr(perceptual.importlib.util, "find_spec", lambda name: name)
    assert "needs the weights" in perceptual.explain_absence("fid")
    assert "needs the weights alexnet-owt" in perceptual.explain_absence("lpips")
    assert "needs the weights squeezenet1_1" in perceptual.explain_absence("lpips=squeeze")
    assert perceptual.explain_absence("psnr") is None
    images = torch.rand(2, 1, 16, 16)
    assert perceptual.measure_lpips(images, images) is None
    assert perceptual.measure_fid(images, images) is None


def test_lpips_and_fid_are_given_rgb_in_their_ranges(monkeypatch):
    seen = []

    class Metric:
        def __call__(self, images, reference):
            seen.append((images.shape, float(images.min()), float(images.max())))
            return torch.tensor(0.25)

        def reset(self):
            pass

        def update(self, images, real):
            seen.append((images.shape, float(images.min()), float(images.max())))

        def compute(self):
            return torch.tensor(3.0)

    networks = []
    monkeypatch.setattr(perceptual.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(perceptual.Path, "is_file", lambda path: True)
    monkeypatch.setattr(perceptual, "_load_lpips", lambda network: networks.append(network) or Metric())
    monkeypatch.setattr(perceptual, "_load_fid", Metric)
    images = torch.linspace(-2, 2, 500 * 64).reshape(500, 1, 8, 8)
    assert perceptual.measure_lpips(images, images) == 0.25
    assert perceptual.measure_lpips(images, images, "lpips=squeeze") == 0.25
    assert networks == ["alex", "squeeze"]
    assert perceptual.explain_absence("fid", 499) == "fid: not measured: needs 500 images or more, and there are 499"
    assert perceptual.explain_absence("fid", 500) is None
    assert perceptual.measure_fid(images[:499], images[:499]) is None
    assert perceptual.measure_fid(images, images) == 3.0
    assert seen == [
        ((500, 3, 8, 8), -1.0, 1.0),
        ((500, 3, 8, 8), -1.0, 1.0),
        ((500, 3, 8, 8), 0.0, 1.0),
        ((500, 3, 8, 8), 0.0, 1.0),
    ]


def test_one_network_for_lpips():
    images = torch.rand(2, 1, 16, 16)
    with pytest.raises(ZeusError, match="metric: got lpips and lpips=squeeze; expected one network"):
        measure_quality(images, images, images, images, ("lpips", "lpips=squeeze"))
    with pytest.raises(ZeusError, match="metric: got 'lpips=vgg'; expected some of psnr"):
        measure_quality(images, images, images, images, ("lpips=vgg",))


def test_the_loaders_are_those_of_torchmetrics(monkeypatch):
    from torchmetrics.image import fid, lpip

    asked = {}
    fake = types.SimpleNamespace
    monkeypatch.setattr(lpip, "LearnedPerceptualImagePatchSimilarity", lambda **options: fake(**asked, **options))
    monkeypatch.setattr(fid, "FrechetInceptionDistance", lambda **options: fake(**options))
    assert perceptual._load_lpips.__wrapped__("alex").net_type == "alex"
    assert perceptual._load_fid.__wrapped__().feature_extractor_weights_path.endswith("6726825d.pth")
