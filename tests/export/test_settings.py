"""What a pipeline is run with: its required arguments are made, others are asked for by name."""

import inspect

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from tiny_unets import build_sd, tiny_unet, tiny_vae

from zeus_trt.argument_value import read_argument
from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model, verify_bundle
from zeus_trt.export.arguments import Size, find_kind, make
from zeus_trt.export.capture import capture
from zeus_trt.export.pipeline_call import DETAIL, MissingArgument, PipelineCall
from zeus_trt.export.settings import choose_settings, fix_text


class Painter(diffusers.DiffusionPipeline):
    """A loop around a UNet, for pipelines that differ in what they ask for."""

    def __init__(self, unet, scheduler):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        self.vae_scale_factor = 8

    @torch.no_grad()
    def paint(self, rows, height, width, text=None, num_inference_steps=3):
        self.scheduler.set_timesteps(num_inference_steps)
        latents = torch.randn(rows, 4, height // 8, width // 8)
        text = torch.ones(rows, 7, 16) if text is None else text
        for time in self.scheduler.timesteps:
            latents = self.scheduler.step(self.unet(latents, time, text)[0], time, latents).prev_sample
        return (latents,)


def make_pipeline(call):
    kind = type("Sketch", (Painter,), {"__call__": call})
    return kind(tiny_unet().eval(), diffusers.DDIMScheduler(clip_sample=False))


def list_axes(pipeline, arguments=None, sizes=()):
    settings, unseen = choose_settings(pipeline, sizes, arguments)
    captured = capture(pipeline, settings)
    return {spec.name: spec.axes for spec in captured.inputs}, settings, unseen


def of_picture(self, image=None, num_inference_steps=3):
    rows = len(image)
    return self.paint(rows, image[0].height, image[0].width)


def of_one_picture(self, prompt, image, height=64, width=64, num_inference_steps=3):
    assert isinstance(image, Image.Image)
    return self.paint(len(prompt), height, width)


def of_cache(self, prompt, height=64, width=64, num_inference_steps=3, use_kv_cache=True):
    assert not use_kv_cache  # it would pass an object to its denoiser
    return self.paint(len(prompt), height, width)


def of_tensors(self, prompt, control_image, mask_image=None, num_inference_steps=3):
    if mask_image is None:
        raise ValueError("`mask_image` is needed")
    if not isinstance(control_image, torch.Tensor):
        raise TypeError("give tensors")
    assert mask_image.shape[1] == 1
    assert set(mask_image.unique().tolist()) == {0, 1}
    return self.paint(len(prompt), *control_image.shape[2:])


def of_embeddings(self, image_embeds, negative_image_embeds, height=64, width=64, num_inference_steps=3):
    return self.paint(len(image_embeds), height, width, (image_embeds + negative_image_embeds)[:, None])


def of_video(self, video, prompt, height=64, width=64, num_frames=9, num_inference_steps=3):
    assert len(video) == len(prompt)
    assert len(video[0]) == num_frames
    assert video[0][0].size == (width, height)
    return self.paint(len(prompt), height, width)


def of_single_prompts(self, prompt, num_images_per_prompt=1, height=64, width=64, num_inference_steps=3):
    if not isinstance(prompt, str):
        raise ValueError("one prompt at a time")
    return self.paint(num_images_per_prompt, height, width)


def of_batch_size(self, batch_size=1, num_inference_steps=3):
    return self.paint(batch_size, 64, 64)


SIZED = {"sample": ("batch", 4, "height", "width")}


@pytest.mark.parametrize(
    ("call", "axes"),
    [
        (of_picture, SIZED),
        (of_one_picture, SIZED),
        (of_tensors, SIZED),
        (of_embeddings, {**SIZED, "encoder_hidden_states": ("batch", 1, 16)}),
        (of_video, SIZED),
        (of_single_prompts, SIZED),
        (of_batch_size, {"sample": ("batch", 4, 8, 8)}),
        (of_cache, SIZED),
    ],
)
def test_what_a_pipeline_needs_is_made(call, axes):
    found, _, _ = list_axes(make_pipeline(call))
    assert axes.items() <= found.items()


def of_text(self, prompt, height=64, width=64, max_sequence_length=32, num_inference_steps=3):
    return self.paint(len(prompt), height, width, torch.ones(len(prompt), max_sequence_length, 16))


def test_text_length_is_an_axis_where_the_pipeline_has_the_argument():
    found, _, _ = list_axes(make_pipeline(of_text))
    assert found["encoder_hidden_states"] == ("batch", "prompt", 16)


def of_words(self, prompt, height=64, width=64, num_inference_steps=3):
    return self.paint(len(prompt), height, width, torch.ones(len(prompt), max(len(one.split()) for one in prompt), 16))


def test_text_length_is_an_axis_where_prompts_are_padded_to_the_longest():
    found, settings, unseen = list_axes(make_pipeline(of_words))
    assert found["encoder_hidden_states"] == ("batch", "prompt", 16)
    assert [DETAIL in change for change in unseen] == [False, False, True]
    fixed, seen = fix_text(settings, unseen)
    assert DETAIL not in fixed.varied
    assert [*seen] == [{name: value for name, value in change.items() if name != DETAIL} for change in unseen]


def of_fixed_size(self, prompt, height=64, width=64, max_sequence_length=32, num_inference_steps=3):
    if (height, max_sequence_length) != (128, 32):
        raise ValueError("fixed")
    return self.paint(len(prompt), height, width)


@pytest.mark.parametrize("sizes", [(), [(128, 64)]])
def test_what_a_pipeline_refuses_to_vary_stays(sizes):
    found, settings, unseen = list_axes(make_pipeline(of_fixed_size), sizes=sizes)
    assert found["sample"] == ("batch", 4, 16, "width")
    assert settings.varied.keys() == {"prompt", "width", DETAIL}
    assert all(change.keys() <= {"width", DETAIL} for change in unseen)
    assert unseen


def of_anything(self, prompt, dial, image=None, num_inference_steps=3):
    if image is not None:
        assert image[0].size == image[-1].size
    return self.paint(len(prompt), 64, 64)


def test_what_cannot_be_made_is_asked_for_by_name_and_taken():
    pipeline = make_pipeline(of_anything)
    with pytest.raises(MissingArgument, match=r"dial: got none for a Sketch.* Pass the argument dial\."):
        choose_settings(pipeline)
    assert choose_settings(pipeline, arguments={"dial": 3})[0].run.given == {"dial": 3}
    with pytest.raises(ZeusError, match="knob: got it for a Sketch; expected one of prompt, dial, image"):
        choose_settings(pipeline, arguments={"knob": 3})


def of_stubborn(self, prompt, num_inference_steps=3):
    raise RuntimeError("the moon\nis full")


def test_a_pipeline_that_fails_whatever_is_made_gives_its_cause_on_one_line():
    with pytest.raises(MissingArgument, match="RuntimeError: the moon is full") as raised:
        choose_settings(make_pipeline(of_stubborn))
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value.__cause__, RuntimeError)


def of_missing_package(self, prompt, num_inference_steps=3):
    return not_installed_anywhere.fix(prompt)  # noqa: F821  (diffusers leaves optional packages undefined)


def test_a_missing_package_is_named():
    with pytest.raises(ZeusError, match="uses the package not_installed_anywhere; expected it to be installed"):
        choose_settings(make_pipeline(of_missing_package))


if not diffusers:  # as diffusers leaves out what is not installed
    from missing_vision import transforms

    from .missing_module import Processor


def of_missing_vision(self, prompt, num_inference_steps=3):
    return transforms.resize(prompt)


def of_missing_module(self, prompt, num_inference_steps=3):
    return Processor(prompt)


def test_the_package_of_a_missing_name_is_named():
    with pytest.raises(ZeusError, match=r"uses the package missing_vision; .* pip install missing_vision"):
        choose_settings(make_pipeline(of_missing_vision))
    with pytest.raises(MissingArgument, match="name 'Processor' is not defined"):
        choose_settings(make_pipeline(of_missing_module))


def test_given_values_are_used():
    found, settings, _ = list_axes(
        make_pipeline(of_one_picture), {"image": Image.new("RGB", (7, 5)), "prompt": "a dog", "height": 64, "width": 96}
    )
    assert settings.base["prompt"] == ["a dog"] * 2
    assert found["sample"] == ("batch", 4, 8, 12)


def test_image_to_image_runs_enough_steps_at_its_own_strength():
    parts = {**build_sd().components, "vae": tiny_vae()}
    pipeline = diffusers.StableDiffusionImg2ImgPipeline(**parts, requires_safety_checker=False)
    embeds = {"prompt": None, "prompt_embeds": torch.ones(2, 7, 16), "negative_prompt_embeds": torch.zeros(2, 7, 16)}
    settings, _ = choose_settings(pipeline, arguments={**embeds, "strength": 0.3})
    captured = capture(pipeline, settings)
    assert captured.component == "unet"
    assert captured.inputs[0].axes == ("batch", 4, "height", "width")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("image", "picture"), ("control_image", "picture"), ("reference_images", "picture"), ("mask_image", "mask"),
        ("original_image", "picture"), ("original_size", None),
        ("prompt_attention_mask", None),
        ("mask", "mask"), ("video", "video"), ("control_video", "video"), ("conditioning_frames", "video"),
        ("mask_video", "mask video"), ("image_embeds", "embedding"), ("audio", "sound"), ("prompt_2", "words"),
        ("num_frames", None), ("latents", None), ("ip_adapter_image", None), ("image_latents", None), ("dial", None),
    ],
)  # fmt: skip
def test_kinds_by_name(name, kind):
    assert find_kind(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY), has_frames=False) == kind


def test_content_follows_the_seed():
    first, other = (make("picture", "image", Size(2, 8, 12, 5, seed), "tensor", ()) for seed in (0, 1))
    assert first.shape == (2, 3, 8, 12)
    assert not torch.equal(first, other)


def test_values_of_the_command_line(tmp_path):
    assert [read_argument("x", text) for text in ("0.5", "[1, 2]", "true", "a cat")] == [0.5, [1, 2], True, "a cat"]
    Image.new("L", (6, 4)).save(tmp_path / "a.png")
    np.savez(tmp_path / "a.npz", embeds=np.ones((2, 3), np.float32))
    np.savez(tmp_path / "two.npz", one=np.ones(2), two=np.ones(2))
    (tmp_path / "a.json").write_text('{"a": [1]}')
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert read_argument("image", str(tmp_path / "a.png")).size == (6, 4)
    assert read_argument("x", str(tmp_path / "a.npz")).shape == (2, 3)
    assert read_argument("x", str(tmp_path / "a.json")) == {"a": [1]}
    for name in ("two.npz", "objects.npy"):
        with pytest.raises(ZeusError, match=f"x: got .*{name}, which does not read"):
            read_argument("x", str(tmp_path / name))


def test_what_replaces_the_sizes_is_switched_off():
    passed = PipelineCall()(Resizing(), height=64, width=96)
    assert passed == {"height": 64, "width": 96, "max_area": 64 * 96}


class Resizing:
    """A double of FLUX Kontext, which takes height and width for an aspect ratio."""

    def __call__(self, height=None, width=None, max_area=1024**2):
        return {"height": height, "width": width, "max_area": max_area}


class OneByOne(diffusers.UNet2DConditionModel):
    """Takes the words of its text one by one, which fixes how many there are in a graph."""

    def forward(self, sample, timestep, encoder_hidden_states, **more):
        words = [encoder_hidden_states[:, place : place + 1] for place in range(encoder_hidden_states.shape[1])]
        return super().forward(sample, timestep, torch.cat(words, dim=1), **more)


@pytest.mark.slow
def test_a_denoiser_that_fixes_the_length_of_text_is_exported_for_one(tmp_path, caplog):
    pipeline = make_pipeline(of_words)
    pipeline.unet.__class__ = OneByOne
    bundle = export_model(pipeline, tmp_path / "bundle", steps=())
    text = next(spec for spec in bundle.manifest.inputs if spec.name == "encoder_hidden_states")
    assert text.axes == ("batch", 5, 16)
    assert "the graph takes text of one length" in caplog.text
    assert verify_bundle(bundle, pipeline)
