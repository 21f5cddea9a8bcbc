"""Arguments that follow others: the output that a pipeline returns, and values per step."""

import diffusers
import pytest
import torch
from test_settings import make_pipeline
from tiny_unets import tiny_unet

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.export.capture import capture
from zeus_trt.export.denoisers import watch
from zeus_trt.export.pipeline_call import MissingArgument, PipelineCall
from zeus_trt.export.settings import choose_settings
from zeus_trt.runtime import accelerate

tried = set()


def of_pictures_alone(self, prompt, height=64, width=64, output_type="np", num_inference_steps=3):
    if output_type not in ("pt", "np"):
        raise ValueError("`output_type` must be one of `pt` or `np`.")
    return self.paint(len(prompt), height, width)


def of_broken_output(self, prompt, height=64, width=64, output_type="np", num_inference_steps=3):
    tried.add(output_type)
    raise ValueError("the moon is full")


def test_a_pipeline_without_latent_output_runs_with_another():
    assert choose_settings(make_pipeline(of_pictures_alone))[0].base["output_type"] == "pt"


def test_other_outputs_are_tried_only_where_the_pipeline_speaks_of_them():
    with pytest.raises(MissingArgument, match="the moon is full"):
        choose_settings(make_pipeline(of_broken_output))
    assert tried == {"latent"}


def of_negative_prompt(self, prompt, negative_prompt=None, height=64, width=64, num_inference_steps=3):
    return self.paint(len([*prompt, *negative_prompt]) // 2, height, width)


def test_a_pipeline_that_does_not_read_none_gets_a_negative_prompt():
    assert choose_settings(make_pipeline(of_negative_prompt))[0].run.kinds == {"negative_prompt": "words"}


def of_one_kind_of_prompt(self, prompt, negative_prompt=None, height=64, width=64, num_inference_steps=3):
    if not isinstance(prompt, str) or type(prompt) is not type(negative_prompt):
        raise TypeError("`negative_prompt` should be the same type to `prompt`")
    return self.paint(1, height, width)


def test_words_are_one_string_where_the_prompt_is():
    assert choose_settings(make_pipeline(of_one_kind_of_prompt))[0].run.kinds == {"negative_prompt": "words"}


class Decoder(diffusers.DiffusionPipeline):
    """A double of UnCLIP, whose schedulers have other names."""

    def __init__(self, decoder, decoder_scheduler):
        super().__init__()
        self.register_modules(decoder=decoder, decoder_scheduler=decoder_scheduler)

    @torch.no_grad()
    def __call__(self, prompt, num_inference_steps=8):
        self.decoder_scheduler.set_timesteps(num_inference_steps)
        latents = torch.ones(len(prompt), 4, 8, 8)
        for time in self.decoder_scheduler.timesteps:
            output = self.decoder(latents, time, torch.ones(len(prompt), 7, 16))[0]
            latents = self.decoder_scheduler.step(output, time, latents).prev_sample
        return (latents,)


def test_a_scheduler_of_another_name_steps_too():
    pipeline = Decoder(tiny_unet().eval(), diffusers.DDIMScheduler())
    settings, _ = choose_settings(pipeline)
    assert watch(pipeline, lambda proxy: settings.run(proxy, **settings.base)).called == ["decoder"]
    with accelerate(pipeline, ratio=2) as twin:
        twin(["a"])
    assert twin.report.nfe < 8
    with pytest.raises(ZeusError, match="got a Decoder with decoder_scheduler; expected one named scheduler"):
        capture(pipeline, settings)
    with pytest.raises(ZeusError, match="got a Decoder without a part named scheduler; expected one"):
        PipelineWorkload(pipeline, ["a"]).program(8)


class Store:
    """A double of a processor that keeps what attention makes, as that of self-attention guidance does."""

    def __call__(self, attention, hidden_states, *args, **kwargs):
        self.kept = hidden_states
        return hidden_states


def of_attention_maps(self, prompt, height=64, width=64, num_inference_steps=3):
    store = next(part for part in self.unet.modules() if hasattr(part, "processor")).processor = Store()
    self.scheduler.set_timesteps(num_inference_steps)
    latents = torch.ones(len(prompt), 4, height // 8, width // 8)
    for time in self.scheduler.timesteps:
        output = self.unet(latents, time, torch.ones(len(prompt), 7, 16))[0]
        latents = self.scheduler.step(output + store.kept.mean(), time, latents).prev_sample
    return (latents,)


def test_networks_run_where_the_pipeline_reads_what_their_attention_keeps():
    settings, _ = choose_settings(make_pipeline(of_attention_maps))
    assert len(settings.base["prompt"]) == 2


def test_an_export_of_what_their_attention_keeps_is_refused():
    pipeline = make_pipeline(of_attention_maps)
    settings, _ = choose_settings(pipeline)
    with (
        torch.no_grad(),
        pytest.raises(ZeusError, match=r"reads what its networks keep of each call.* without an engine"),
    ):
        capture(pipeline, settings)


def of_reference_pictures(self, prompt, image, height=64, width=64, num_inference_steps=3):
    pictures = image if isinstance(image, list) else [image]
    self.scheduler.set_timesteps(num_inference_steps)
    latents = torch.randn(len(prompt), 4, height // 8, width // 8)
    for time in self.scheduler.timesteps:
        shapes = {"shapes": [[picture.size for picture in pictures]] * len(prompt)}
        noise = self.unet(latents, time, torch.ones(len(prompt), 7, 16), cross_attention_kwargs=shapes)[0]
        latents = self.scheduler.step(noise, time, latents).prev_sample
    return (latents,)


def test_rows_share_a_picture_where_a_list_is_one_of_references_of_each_row():
    assert choose_settings(make_pipeline(of_reference_pictures))[0].run.form == "one"


class Guided:
    """A double of Ideogram 4, whose guidance has a value per step."""

    def __call__(self, num_inference_steps=6, guidance_schedule=(7.0, 7.0, 7.0, 7.0, 7.0, 3.0), names=("latents",)):
        return num_inference_steps, guidance_schedule, names


def test_a_default_per_step_is_cut_to_fewer_steps():
    steps, schedule, names = PipelineCall()(Guided())
    assert (len(schedule), names) == (steps, ("latents",))
    given = PipelineCall(given={"guidance_schedule": (1.0,) * 4})
    assert given(Guided())[1] == (1.0,) * 4


def writing_into_its_prompts(self, prompt, height=64, width=64, num_inference_steps=3):
    for row, text in enumerate(prompt):
        prompt[row] = ["<user>" + text]
    return self.paint(len(prompt), height, width)


def test_a_pipeline_that_writes_into_its_prompts_gets_copies_of_them():
    prompts = choose_settings(make_pipeline(writing_into_its_prompts))[0].base["prompt"]
    assert all(isinstance(prompt, str) for prompt in prompts)


def of_a_map(self, image_embeddings, prompt, num_inference_steps=3):
    """Reads a map of features as Wuerstchen's decoder does, whose levels do not halve every size."""
    high, wide = (8 * size for size in image_embeddings.shape[2:])
    if high != wide:
        raise RuntimeError("Sizes of tensors must match")
    return self.paint(len(prompt), 8 * high, 8 * wide)


def test_an_embedding_is_a_map_of_a_square_picture_where_a_network_reads_one():
    pipeline = make_pipeline(of_a_map)
    pipeline.unet.register_to_config(effnet_embd=6)
    made = []
    call = choose_settings(pipeline)[0].run
    pipeline.paint = lambda rows, high, wide, *_: made.append((high, wide))
    call(pipeline, prompt=["a", "b"], height=512, width=512)
    assert call.shape == (6, -1, -1)
    assert made == [(8 * 8 * 12, 8 * 8 * 12)]
