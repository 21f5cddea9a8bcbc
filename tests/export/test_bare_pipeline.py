"""A bare model folder as a pipeline: its export, and what it refuses."""

import diffusers
import pytest
import torch
from checkout import MODELS
from tiny_subjects import write_unlabelled

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model, load_pipeline
from zeus_trt.export.bare_pipeline import BarePipeline
from zeus_trt.export.labels import choose_labels
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.manifest import Labels
from zeus_trt.runtime.pipelines.weights_digest import digest_weights


def test_it_samples_as_a_session_of_its_bundle(digits_bundle, one_thread):
    pipeline = load_pipeline(MODELS / "digits-unet-flow")
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    made = pipeline([7, 1], num_inference_steps=5, generator=generators).images
    with Session(digits_bundle("unet-flow")) as session:
        labels = {"class_labels": torch.tensor([7, 1])}
        expected = session.generate(labels, num_steps=5, ratio=0, guidance_scale=2.0, seed=[3, 4]).latents
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-3)


def test_the_manifest_of_a_bare_model(digits_bundle):
    manifest = Bundle.open(digits_bundle("dit-flow")).manifest
    pipeline = load_pipeline(MODELS / "digits-dit-flow")
    assert manifest.pipeline_class == "BarePipeline"
    assert (manifest.model, manifest.component, manifest.guidance) == ("digits-dit-flow", "transformer", "batched")
    assert (manifest.labels.count, manifest.labels.null, manifest.timestep_scale) == (10, 10, 1.0)
    assert [spec.role for spec in manifest.inputs] == ["latents", "timestep", "conditioning"]
    assert manifest.weights_sha256 == digest_weights(pipeline.transformer)[0]


def test_a_model_without_labels(tmp_path):
    folder = write_unlabelled(tmp_path / "model")
    manifest = export_model(folder, tmp_path / "bundle", steps=()).manifest
    assert (manifest.labels, manifest.guidance, manifest.model) == (None, "none", "model")
    assert [spec.name for spec in manifest.inputs] == ["sample", "timestep"]
    pipeline = load_pipeline(folder)
    with pytest.raises(ZeusError, match="guidance_scale: got 3 for a model without class labels"):
        pipeline(batch_size=2, guidance_scale=3.0)
    with pytest.raises(ZeusError, match="null_label: got 1 for a model without class labels"):
        export_model(folder, tmp_path / "other", null_label=1)


def test_a_model_of_two_classes_is_verified_at_labels_that_it_has(tmp_path):
    unet = diffusers.UNet2DModel(
        sample_size=[8, 16], in_channels=1, out_channels=1, block_out_channels=(8,), norm_num_groups=4,
        layers_per_block=1, num_class_embeds=2, down_block_types=("DownBlock2D",), mid_block_type=None,
        up_block_types=("UpBlock2D",),
    )  # fmt: skip
    pipeline = BarePipeline(diffusers.DDIMScheduler(), unet.eval(), None)
    manifest = export_model(pipeline, tmp_path / "bundle", steps=()).manifest
    assert manifest.latents.axes == ("batch", 1, 8, 16)
    assert (manifest.labels.count, manifest.labels.null) == (1, 1)
    assert choose_labels(unet, 0) == Labels(count=2, null=0)


def test_options_of_other_pipelines_are_refused_and_nothing_is_left(tiny_model, tmp_path):
    for options, said in (
        ({"sizes": [(64, 64)]}, "sizes: got some for a BarePipeline, which runs at one size"),
        ({"component": "vae"}, "component: got vae; expected one of unet"),
        ({"arguments": {"prompt": "a"}}, "prompt: got it for a BarePipeline"),
    ):
        with pytest.raises(ZeusError, match=said):
            export_model(tiny_model, tmp_path / "bundle", **options)
    with pytest.raises(TypeError, match="magic"):
        export_model(tiny_model, tmp_path / "bundle", magic=1)
    assert list(tmp_path.iterdir()) == []


def test_a_denoiser_that_needs_more_is_sent_to_its_pipeline(tmp_path):
    from tiny_unets import tiny_unet

    tiny_unet().save_pretrained(tmp_path / "unet")
    diffusers.DDIMScheduler().save_pretrained(tmp_path / "scheduler")
    with pytest.raises(ZeusError, match="needs encoder_hidden_states; expected a denoiser of latents"):
        load_pipeline(tmp_path)
