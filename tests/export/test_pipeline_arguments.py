"""Arguments that follow others: the output that a pipeline returns, and values per step."""

import pytest
from test_settings import make_pipeline

from zeus_trt.export.pipeline_call import MissingArgument, PipelineCall
from zeus_trt.export.settings import choose_settings

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


class Guided:
    """A double of Ideogram 4, whose guidance has a value per step."""

    def __call__(self, num_inference_steps=6, guidance_schedule=(7.0, 7.0, 7.0, 7.0, 7.0, 3.0), names=("latents",)):
        return num_inference_steps, guidance_schedule, names


def test_a_default_per_step_is_cut_to_fewer_steps():
    steps, schedule, names = PipelineCall()(Guided())
    assert (len(schedule), names) == (steps, ("latents",))
    given = PipelineCall(given={"guidance_schedule": (1.0,) * 4})
    assert given(Guided())[1] == (1.0,) * 4
