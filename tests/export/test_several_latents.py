"""A denoiser of several latents, each with a solver: a video and its sound."""

import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.networks import find_together
from zeus_trt.export.residuals import find_moving
from zeus_trt.export.runs import Run
from zeus_trt.runtime import Session, accelerate
from zeus_trt.runtime.pipelines.arguments import flatten

FAMILY = FAMILIES["ltx2"]


def run(pipeline, steps=12):
    torch.manual_seed(0)
    made = FAMILY.run(pipeline, **FAMILY.base, steps=steps)
    return made.frames, made.audio


def test_channels_that_stay_and_times_per_token_are_no_latents():
    leaves = {"video": torch.zeros(2, 5, 9), "sound": torch.zeros(2, 7, 4), "times": torch.zeros(2, 5)}
    moved = {"video": (2, 5, 4), "sound": (2, 7, 4), "times": (2, 5)}
    base = Run(flatten(leaves), {}, moved, dict.fromkeys(moved), 1, leaves)
    assert find_together(base, (torch.zeros(2, 5, 4), torch.zeros(2, 7, 4))) == ("video", "sound")


@pytest.mark.parametrize("shapes", [[(2, 5), (2, 7)], [(2, 5)], [(2, 7), (2, 5)], [(2, 5), (2, 7), (2, 9)]])
def test_latents_belong_together_where_each_has_an_output(shapes):
    leaves = {"video": torch.zeros(2, 5), "sound": torch.zeros(2, 7), "sigma": torch.zeros(2), "text": torch.zeros(2)}
    scales = {"video": None, "sound": None, "sigma": 1.0}
    changing = {name: tuple(leaves[name].shape) for name in scales}
    base = Run(flatten(leaves), {}, changing, scales, 1, leaves)
    found = find_together(base, tuple(torch.zeros(shape) for shape in shapes))
    assert found == (("video", "sound") if shapes == [(2, 5), (2, 7)] else ())


def test_latents_that_the_pipeline_keeps_belong_to_those_that_it_changes():
    leaves = {"video": torch.zeros(2, 5), "sound": torch.zeros(2, 7), "sigma": torch.zeros(2)}  # as LTX2's HDR
    moved = {"video": (2, 5), "sigma": (2,)}
    base = Run(flatten(leaves), {}, moved, dict.fromkeys(moved), 1, leaves)
    assert find_together(base, (torch.zeros(2, 5), torch.zeros(2, 7))) == ("video", "sound")


def test_tokens_are_no_latents():
    leaves = {"input_ids": torch.zeros(2, 5, dtype=torch.int64), "sigma": torch.zeros(2)}
    base = Run(flatten(leaves), {}, {"input_ids": (2, 5), "sigma": (2,)}, {"input_ids": None, "sigma": 1.0}, 1, leaves)
    with pytest.raises(ZeusError, match="got input_ids, integers such as tokens, changing with the step"):
        find_moving(None, None, "transformer", base)


@pytest.mark.slow
def test_a_skipped_step_predicts_each_of_the_outputs():
    pipeline = FAMILY.make()
    plain = run(pipeline)
    errors = {}
    for ratio, predictor in ((0, None), (2, "zeus"), (2, "reuse")):
        with accelerate(pipeline, ratio, predictor=predictor) as fast:
            made = run(fast)
        assert fast.report.nfe == (12 if not ratio else 8)
        errors[predictor] = [float((one - other).norm()) for one, other in zip(made, plain, strict=True)]
    assert errors[None] == [0, 0]
    assert all(0 < zeus != reuse > 0 for zeus, reuse in zip(errors["zeus"], errors["reuse"], strict=True))


@pytest.mark.slow
def test_an_engine_answers_both(family_bundle):
    pipeline, bundle = FAMILY.make(), family_bundle("ltx2")
    assert "hidden_states and audio_hidden_states in one call" in bundle.manifest.unsteppable
    with Session(bundle) as session:
        for ratio in (0, 2):
            with accelerate(pipeline, ratio) as eager, accelerate(pipeline, ratio, engine=session) as fast:
                for one, other in zip(run(eager), run(fast), strict=True):
                    torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)
        with pytest.raises(ZeusError, match="each has a solver"):
            session.generate(num_steps=4)
