"""Classifier-free guidance as a denoiser that wraps a denoiser."""

import torch

from zeus_trt.runtime import ClassifierFreeGuidance


def test_one_batched_call_unconditional_rows_first():
    seen = []

    def denoiser(**inputs):
        seen.append(inputs)
        return inputs["sample"] + inputs["class_labels"][:, None]

    guided = ClassifierFreeGuidance(denoiser, 3.0, {"class_labels": torch.tensor([10, 10])})
    sample = torch.tensor([[1.0], [2.0]])
    output = guided(sample=sample, timestep=torch.tensor([5.0, 5.0]), class_labels=torch.tensor([1, 2]))
    assert torch.equal(output, sample + torch.tensor([[10 + 3 * (1 - 10.0)], [10 + 3 * (2 - 10.0)]]))
    assert len(seen) == 1
    assert seen[0]["class_labels"].tolist() == [10, 10, 1, 2]
    assert seen[0]["timestep"].shape == (4,)
