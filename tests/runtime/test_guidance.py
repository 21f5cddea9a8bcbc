"""Classifier-free guidance as a denoiser that wraps a denoiser, and what a session makes of it."""

import pytest
import torch
from toy_bundle import DIGITS, LABELS, TEXT, denoise, embed, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import ClassifierFreeGuidance, Guidance, draw_noise

NOISE = draw_noise((2, 4, 8, 8), seed=1)
PROMPTS, NEGATIVE = {"encoder_hidden_states": embed(1)}, {"encoder_hidden_states": embed(2)}


def test_one_batched_call_unconditional_rows_first():
    seen = []

    def denoiser(**inputs):
        seen.append(inputs)
        return inputs["sample"] + inputs["class_labels"][:, None]

    guided = ClassifierFreeGuidance(3.0, {"class_labels": torch.tensor([10, 10])})(denoiser)
    sample = torch.tensor([[1.0], [2.0]])
    output = guided(sample=sample, timestep=torch.tensor([5.0, 5.0]), class_labels=torch.tensor([1, 2]))
    assert torch.equal(output, sample + torch.tensor([[10 + 3 * (1 - 10.0)], [10 + 3 * (2 - 10.0)]]))
    assert len(seen) == 1
    assert seen[0]["class_labels"].tolist() == [10, 10, 1, 2]
    assert seen[0]["timestep"].shape == (4,)


@pytest.mark.parametrize("mode", ["program", "step"])
@pytest.mark.parametrize("rescale", [0.0, 0.7])
def test_one_call_per_branch_agrees_with_one_batched_call(mode, rescale):
    session = make_session(TEXT)
    settings = {"plan": session.plan(20, 3), "num_steps": 20, "noise": NOISE, "mode": mode}
    batched, sequential = (
        session.generate(PROMPTS, guidance=Guidance(5.0, NEGATIVE, sequential, rescale=rescale), **settings)
        for sequential in (False, True)
    )
    assert (batched.latents - sequential.latents).norm() < 1e-6 * batched.latents.norm()
    assert batched.report.engine_calls == batched.report.nfe == sequential.report.nfe
    assert sequential.report.engine_calls == 2 * sequential.report.nfe


def test_one_call_per_branch_on_an_engine(open_session):
    """Rows of a batch differ in the last digits from the same rows alone: matrices are multiplied in other blocks."""
    session = open_session("unet-flow")
    settings = {"plan": session.plan(20, 4), "num_steps": 20}
    batched, sequential = (
        session.generate({"class_labels": torch.tensor([3])}, guidance=Guidance(2.0, sequential=asked), **settings)
        for asked in (False, True)
    )
    assert (batched.latents - sequential.latents).norm() < 1e-4 * batched.latents.norm()


def test_one_call_per_branch_takes_a_buffer_that_is_reused_and_texts_of_other_lengths():
    buffer = torch.empty_like(NOISE)
    reusing, plain = make_session(TEXT, engine=lambda **x: buffer.copy_(denoise(**x))), make_session(TEXT)
    guidance = Guidance(5.0, {"encoder_hidden_states": embed(2, length=9)}, sequential=True)
    settings = {"plan": plain.plan(10, 2), "num_steps": 10, "noise": NOISE, "guidance": guidance}
    expected = plain.generate(PROMPTS, **settings).latents
    assert torch.equal(reusing.generate(PROMPTS, **settings).latents, expected)
    with pytest.raises(ZeusError, match="got 9 for length; expected 3"):
        plain.generate(PROMPTS, **{**settings, "guidance": Guidance(5.0, guidance.negative, sequential=False)})


def test_a_pipeline_of_one_call_per_branch_is_run_that_way():
    session = make_session(TEXT, guidance="sequential")
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "noise": NOISE}
    report = session.generate(PROMPTS, guidance_scale=5.0, negative=NEGATIVE, **settings).report
    assert report.engine_calls == 2 * report.nfe


@pytest.mark.parametrize("mode", ["program", "step"])
def test_guidance_inside_an_interval(mode):
    """The history is that of the outputs after guidance, of whichever kind each was."""
    rows = []

    def counting(**inputs):
        rows.append(len(inputs["sample"]))
        return denoise(**inputs)

    session = make_session(TEXT, engine=counting)
    plan, guidance = session.plan(20, 3), Guidance(5.0, NEGATIVE, interval=(0.2, 0.7))
    settings = {"num_steps": 20, "noise": NOISE, "guidance": guidance}
    steps = list(session.sample(PROMPTS, plan=plan, **settings))
    rows.clear()
    result = session.generate(PROMPTS, plan=plan, mode=mode, **settings)
    assert rows == [4 if 4 <= step < 14 else 2 for step in plan.full_steps]
    assert (result.latents - steps[-1].latents).norm() < 3e-6 * steps[-1].latents.norm()
    first = plan.steps.index("X")  # block begins at t = first - 1; the outputs at t and t - 1 are extrapolated
    expected = 2 * steps[first - 1].output - steps[first - 2].output
    assert torch.equal(steps[first].output, expected)
    everywhere = session.generate(PROMPTS, plan=plan, mode=mode, **{**settings, "guidance": Guidance(5.0, NEGATIVE)})
    assert not torch.allclose(result.latents, everywhere.latents)


def test_rescale_gives_the_standard_deviation_back():
    inputs = {"sample": NOISE, "timestep": torch.full((2,), 500.0), **PROMPTS}
    guided, whole, half = (
        ClassifierFreeGuidance(8.0, NEGATIVE, rescale=rescale)(denoise)(**inputs) for rescale in (0.0, 1.0, 0.5)
    )
    cond = denoise(**inputs)
    torch.testing.assert_close(whole.std((1, 2, 3)), cond.std((1, 2, 3)))
    torch.testing.assert_close(half, (guided + whole) / 2)


def test_halves_are_subtracted_in_full():
    def halves(**inputs):
        return denoise(**inputs).half()

    inputs = {"sample": NOISE, "timestep": torch.full((2,), 500.0), **PROMPTS}
    for sequential in (False, True):
        output = ClassifierFreeGuidance(8.0, NEGATIVE, sequential=sequential)(halves)(**inputs)
        assert output.dtype == torch.float32


def test_any_other_guidance_is_a_callable_around_the_engine():
    """Here one that leaves a region unguided."""
    session = make_session(LABELS, labels=DIGITS)
    settings = {"plan": session.plan(10, 2), "num_steps": 10, "noise": NOISE}
    inside = torch.zeros(1, 1, 8, 8)
    inside[..., :4] = 1
    guided = ClassifierFreeGuidance(5.0, {"class_labels": torch.tensor([10, 10])})(denoise)

    def regional(**inputs):
        return inside * guided(**inputs) + (1 - inside) * denoise(**inputs)

    labels = {"class_labels": torch.tensor([1, 2])}
    own = make_session(LABELS, labels=DIGITS, engine=regional).generate(labels, **settings).latents
    assert torch.isfinite(own).all()
    for scale in (1.0, 5.0):
        assert not torch.equal(own, session.generate(labels, guidance_scale=scale, **settings).latents)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scale": float("nan")}, "guidance_scale: got nan"),
        ({"scale": "5"}, "guidance_scale: got '5'"),
        ({"scale": True}, "guidance_scale: got True"),
        ({"interval": (0.8, 0.2)}, "guidance interval: got 0.2; expected a number from 0.8 to 1"),
        ({"interval": (-1, 0.2)}, "guidance interval: got -1"),
        ({"interval": 0.5}, "guidance interval: got 0.5"),
        ({"rescale": 2.0}, "guidance rescale: got 2.0"),
        ({"negative": 3}, "negative: got int"),
    ],
)
def test_numbers_outside_of_their_range(arguments, words):
    with pytest.raises(ZeusError, match=words):
        Guidance(**arguments)


def test_the_short_form_and_the_long_one_are_not_mixed():
    session = make_session(TEXT)
    with pytest.raises(ZeusError, match="Give one of them"):
        session.generate(PROMPTS, plan=session.plan(10, 2), guidance=Guidance(), guidance_scale=3.0)


def test_any_other_guidance_is_a_function_of_the_denoiser():
    """Here it is classifier-free guidance, by hand."""
    session = make_session(TEXT)
    settings = {"plan": session.plan(20, 3), "num_steps": 20, "noise": NOISE}

    def wrap(denoiser):
        def guided(**inputs):
            cond, uncond = denoiser(**inputs), denoiser(**{**inputs, **NEGATIVE})
            return uncond + 5.0 * (cond - uncond)

        return guided

    interval = (0.2, 0.7)
    own = session.generate(PROMPTS, guidance=Guidance(wrap=wrap, interval=interval), **settings)
    expected = session.generate(PROMPTS, guidance=Guidance(5.0, NEGATIVE, True, interval), **settings)
    assert torch.equal(own.latents, expected.latents)
    assert own.report.engine_calls == expected.report.engine_calls > own.report.nfe
    for wrong in ({"wrap": 3}, {"wrap": wrap, "scale": 2.0}, {"wrap": wrap, "negative": NEGATIVE}):
        with pytest.raises(ZeusError, match="guidance wrap: got"):
            Guidance(**wrong)


@pytest.mark.parametrize("mode", ["program", "step"])
@pytest.mark.parametrize("sequential", [False, True])
def test_an_engine_may_answer_both_branches_in_one_buffer_and_overwrite_its_latents(mode, sequential):
    buffers = {}

    def borrow(**inputs):
        output = denoise(**inputs)
        inputs["sample"].fill_(3.0)
        return buffers.setdefault(output.shape, torch.empty_like(output)).copy_(output)

    settings = {"num_steps": 10, "noise": NOISE, "mode": mode, "guidance": Guidance(5.0, NEGATIVE, sequential)}
    own, borrowed = (
        session.generate(PROMPTS, plan=session.plan(10, 2), **settings).latents
        for session in (make_session(TEXT), make_session(TEXT, engine=borrow))
    )
    assert torch.equal(own, borrowed)
