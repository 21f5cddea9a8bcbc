"""Verification of captures: what is compared, and what is refused."""

import pytest
import torch
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import compare, list_cases, take_rows
from zeus_trt.export.capture import capture
from zeus_trt.export.flat import FlatDenoiser

FLUX = FAMILIES["flux"]


@pytest.fixture(scope="module")
def flux():
    pipeline = FLUX.make()
    return pipeline, capture(pipeline, FLUX.settings)


def verify(flux, change=lambda output: output):
    pipeline, captured = flux
    flat, seen = FlatDenoiser(captured), []

    @torch.inference_mode()
    def engine(**inputs):
        seen.append(inputs)
        return change(flat(*inputs.values()))

    cases = list_cases(captured, pipeline, FLUX.settings, ({}, *FLUX.unseen))
    return compare(pipeline.transformer, engine, cases, "double"), seen


def test_every_setting_is_compared_at_every_batch(flux):
    records, seen = verify(flux)
    assert [record.shape for record in records] == [
        (2, 24, 16), (1, 24, 16), (2, 24, 16), (3, 24, 16),
        (2, 48, 16), (1, 48, 16), (2, 48, 16), (3, 48, 16),
        (2, 63, 16), (1, 63, 16), (2, 63, 16), (3, 63, 16),
    ]  # fmt: skip
    assert [record.setting for record in records[::4]] == [{}, *FLUX.unseen]
    assert all(record.relative_error < 1e-6 for record in records)
    assert len(set(seen[3]["timestep"].tolist())) == 3
    assert seen[3]["timestep"].dtype == torch.float32


def test_disagreement_is_refused(flux):
    with pytest.raises(ZeusError, match=r"relative error of 1.00e-03 to the eager model at latents \(2, 24, 16\)"):
        verify(flux, lambda output: output * 1.001)


def test_what_is_not_finite_is_refused(flux):
    with pytest.raises(ZeusError, match="non-finite values from the engine"):
        verify(flux, lambda output: output / 0)


def test_rows_are_those_of_the_batch_only(flux):
    _, captured = flux
    inputs = captured.flatten(captured.arguments)
    rows = take_rows(captured, inputs, 5)
    assert torch.equal(rows["hidden_states"], inputs["hidden_states"][[0, 1, 0, 1, 0]])
    assert rows["guidance"].shape == (5,)
    assert rows["img_ids"] is inputs["img_ids"]
