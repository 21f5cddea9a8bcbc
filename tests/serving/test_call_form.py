"""Which calls may be one."""

import gc

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.serving.call_form import CallForms
from zeus_trt.serving.waiting_call import Caller

INPUTS = {"sample": torch.zeros(2, 4), "timestep": torch.zeros(2), "ids": torch.ones(3)}


def make(forms, letter="F", **changed):
    return forms.make(Caller(), letter, {**INPUTS, **changed}, 0.0, 1.0)


def test_calls_are_alike_whatever_their_rows():
    forms = CallForms(("sample", "timestep"))
    first = make(forms)
    more = make(forms, sample=torch.zeros(5, 4), timestep=7)
    assert (more.rows, more.inputs["timestep"].tolist()) == (5, [7.0] * 5)
    swapped = forms.make(Caller(), "F", dict(reversed(INPUTS.items())), 0.0, 1.0)
    assert first.key == more.key == swapped.key
    others = [
        make(forms, "Q"),
        make(forms, ids=torch.zeros(3)),
        make(forms, ids=torch.ones(3, dtype=torch.float64)),
        make(forms, sample=torch.zeros(2, 5)),
        make(forms, sample=torch.zeros(2, 4, dtype=torch.float64)),
        make(forms, more=torch.zeros(2)),
    ]
    assert len({first.key, *(call.key for call in others)}) == 7


def test_a_call_that_was_refused_is_refused_again():
    forms = CallForms(("sample", "timestep", "labels"))
    for _ in range(2):
        with pytest.raises(ZeusError, match=r"^labels: got the shape \(3,\); expected 2 rows"):
            make(forms, labels=torch.zeros(3))
        with pytest.raises(ZeusError, match=r"^sample: got the shape \(\); expected 1 rows"):
            make(forms, sample=torch.zeros(()))
        with pytest.raises(ZeusError, match="got no timestep"):
            forms.make(Caller(), "F", {"sample": torch.zeros(2, 4)}, 0.0, 1.0)


def test_forms_that_were_forgotten_are_the_same_while_they_are_used():
    forms = CallForms(("sample", "timestep"))
    kept = make(forms)
    for size in range(1, 600):
        make(forms, sample=torch.zeros(2, size))
    assert make(forms).key == kept.key
    gc.collect()
    assert len(forms._forms) <= 257
