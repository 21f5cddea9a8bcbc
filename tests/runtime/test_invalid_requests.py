"""A thousand requests with something wrong in each: every one is refused in our words, and none makes a picture."""

import math
import random

import diffusers
import numpy as np
import pytest
import torch
from toy_bundle import DIGITS, LABELS, TEXT, embed, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Guidance, Session, Start, draw_noise
from zeus_trt.zeus_graph import Plan, Predictor

NOISE = draw_noise((2, 4, 8, 8), seed=1)
NUMBER = 1000
JUNK = [None, 3, -1, 2.5, "x", [], {}, object(), True, math.nan, b"x", np.zeros(2), (1, 2), 10**400]


def spoil(tensor):
    """A tensor that can stand for no other: of another rank, size or kind, or with a bad number in it."""
    bad = tensor.clone().flatten()
    bad[0] = math.nan
    return [
        bad.reshape(tensor.shape), bad.nan_to_num(0).fill_(math.inf).reshape(tensor.shape), tensor[0], tensor[None],
        tensor[:0], torch.cat([tensor, tensor, tensor]), tensor.to(torch.complex64), tensor.tolist(), tensor.numpy(),
        tensor[:, :-1] if tensor.ndim == 4 else tensor[..., :-1], torch.tensor(1.0), tensor.to("meta"),
        tensor.to_sparse(),
    ]  # fmt: skip


def without(junk, *allowed):
    """Junk that is not a value of one of these types; a bool is an int to Python, and none to us."""
    return [value for value in junk if isinstance(value, bool) or not isinstance(value, allowed)]


def list_faults():
    """What can be wrong: the argument, and values that it must not have."""
    embeddings, labels = embed(1), torch.tensor([1, 2])
    bad_text = [{"encoder_hidden_states": value} for value in spoil(embeddings)]
    bad_labels = [
        {"class_labels": value}
        for value in (labels.float(), labels + 10, labels - 5, labels[:1].repeat(3), labels[None], [1, 2], None, 1)
    ]
    both = {"encoder_hidden_states": embeddings, "class_labels": labels}
    plans = [Plan.uniform(n, 2) for n in (1, 2, 7, 9, 11, 50)]
    return {
        "conditioning": [
            *without(JUNK, type(None)), None, {}, {"encoder_hidden_states": embeddings}, {**both, "more": labels},
            {**both, 3: labels}, *({**both, **bad} for bad in (*bad_text, *bad_labels)),
        ],
        "plan": [*without(JUNK, type(None)), "FFXF", *plans],
        "num_steps": [*without(JUNK, int), 0, -1, -10**9, 1, 9, 11, 10**3],
        "batch": [*without(JUNK, int), 0, -1, 3, 7],
        "guidance_scale": [*without(JUNK, int, float), -math.inf, math.inf, 10**400, torch.tensor(3.0), 1j],
        "negative": [
            *without(JUNK, type(None), dict), {"more": embeddings}, {"sample": NOISE}, {"timestep": labels}, *bad_text,
            *bad_labels,
        ],
        "seed": [*without(JUNK, int, list, tuple), [1], [1, 2, 3], [1, "2"], [True, 1], 2**64, -2**64, [1.0, 2.0], ()],
        "noise": [*without(JUNK, type(None)), *spoil(NOISE), NOISE[..., :7], NOISE[:1], NOISE.long(), NOISE > 0],
        "start": [
            *without(JUNK, type(None)), Start(NOISE, 10), Start(NOISE, -1), Start(NOISE, 1.5), Start(NOISE, True),
            Start(NOISE, "1"), Start(NOISE, 3), *(Start(value) for value in (*spoil(NOISE), *JUNK)),
            *(Start(NOISE, 0, mask) for mask in without(JUNK, type(None))),
            *(Start(NOISE, 0, mask) for mask in (NOISE, torch.ones(3), torch.ones(1, 2, 8, 8))),
            *(Start(NOISE, 0, mask) for mask in (torch.full((8, 8), math.nan), torch.full((8, 8), 2))),
        ],
        "schedule": [
            *without(JUNK, type(None), dict), {"nonsense": 1}, {"begin": 1}, {"device": "cuda:99"}, {1: 2},
            {"num_inference_steps": 5}, {"sigmas": [1.0, 0.5, 0.0]}, {"sigmas": "x"}, {"sigmas": [math.nan] * 11},
            {"sigmas": object()}, {"timesteps": [5, 3]}, {"sigmas": [{}]}, {"timesteps": [9, 5], "sigmas": [1.0, 0.0]},
        ],
        "predictor": [
            *without(JUNK, type(None)), "", "ZEUS", "lagrange-9", "zeus@sigma", "lagrange-2@nothing",
            Predictor.from_table({}), Predictor.from_table({3: {1: 1.0}}),
        ],
        "mode": [*JUNK, "Program", "", "graph"],
        "drift_threshold": [*without(JUNK, type(None), int, float), 0, -1.0, -math.inf, math.nan, 10**400],
        "guidance": [*without(JUNK, type(None))],
        "on_call": [*without(JUNK, type(None))],
        "on_step": [*without(JUNK, type(None))],
    }  # fmt: skip


def list_requests():
    """All faults once, then pairs of them, drawn with a fixed seed, until there are enough."""
    faults = [(name, value) for name, values in list_faults().items() for value in values]
    draw = random.Random(0)
    requests = [(fault,) for fault in faults]
    while len(requests) < NUMBER:
        pair = draw.sample(faults, 2)
        if pair[0][0] != pair[1][0]:
            requests.append(tuple(pair))
    return requests


def test_a_thousand_wrong_requests():
    calls = []

    def count(**inputs):
        calls.append(1)
        return torch.zeros_like(inputs["sample"])

    session = make_session(TEXT, LABELS, labels=DIGITS, engine=count)
    request = {
        "conditioning": {"encoder_hidden_states": embed(1), "class_labels": torch.tensor([1, 2])},
        "plan": Plan.uniform(10, 2), "num_steps": 10, "batch": 2, "seed": 0, "noise": NOISE, "guidance_scale": 1.0,
        "predictor": "zeus",
    }  # fmt: skip
    assert session.generate(**request).report.nfe == len(calls) == request["plan"].nfe
    wrong = []
    for faults in list_requests():
        changes = dict(faults)
        if "seed" in changes or "batch" in changes:
            changes.setdefault("noise", draw_noise((2, 4, 8, 8), seed=0))
        calls.clear()
        try:
            session.generate(**{**request, **changes})
            wrong.append((faults, "a picture"))
        except ZeusError as error:
            if calls or not all(mark in str(error) for mark in (": got", "; expected")):
                wrong.append((faults, f"{len(calls)} calls, {error}"))
        except Exception as error:
            wrong.append((faults, repr(error)))
    assert not wrong, f"{len(wrong)} of {NUMBER}, such as " + "\n".join(map(str, wrong[:25]))


def test_the_same_request_without_a_fault_runs():
    """So that each refusal above is for its fault."""
    session = make_session(TEXT, LABELS, labels=DIGITS)
    conditioning = {
        "encoder_hidden_states": embed(1).double(),
        "class_labels": torch.tensor([1, 10], dtype=torch.int32),
    }
    for noise in (NOISE, NOISE.double(), NOISE.half()):
        result = session.generate(
            conditioning, plan=session.plan(10, 2), num_steps=10, noise=noise, guidance_scale=-2, seed=[3, 2**63],
            negative={"encoder_hidden_states": embed(2)}, batch=1, drift_threshold=math.inf,
        )  # fmt: skip
        assert result.latents.dtype == (torch.float64 if noise.dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2), "num_steps: got 0"), ((True, 2), "num_steps: got True"), ((10, -1), "ratio: got -1"),
        ((10.0, 2), "num_steps: got 10.0"), ((10, "2"), "ratio: got '2'"),
    ],
)  # fmt: skip
def test_plans_of_no_numbers(arguments, words):
    with pytest.raises(ZeusError, match=words):
        make_session().plan(*arguments)


def test_unknown_backends_and_devices(digits_bundle):
    with pytest.raises(ZeusError, match="backend: got 'tensorflow'; expected auto, tensorrt"):
        Session(digits_bundle("unet-flow"), backend="tensorflow")
    with pytest.raises(ZeusError, match="device: got 'gpu'"):
        Session(digits_bundle("unet-flow"), device="gpu")
    with pytest.raises(ZeusError, match="got no CUDAExecutionProvider"):
        Session(digits_bundle("unet-flow"), backend="onnxruntime", device="cuda")


def test_schedulers_that_are_none():
    for scheduler in (object(), 3, diffusers.AutoencoderKL):
        with pytest.raises(ZeusError):
            make_session(scheduler=scheduler).plan(10, 2)
    assert Guidance() == Guidance(1.0)
