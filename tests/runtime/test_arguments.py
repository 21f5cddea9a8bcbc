"""What is passed to a denoiser, as named leaves and back."""

import torch

from zeus_trt.runtime.pipelines.arguments import flatten

ANGLES = torch.polar(torch.ones(3, 2), torch.arange(6.0).view(3, 2))


def test_a_complex_tensor_is_a_pair_of_real_ones():
    given = {"hidden_states": torch.ones(2), "rope": [ANGLES, ANGLES.to(torch.complex128).conj()], "scale": 1.0}
    found = flatten(given)
    assert {name: (leaf.dtype, tuple(leaf.shape)) for name, leaf in found.tensors.items()} == {
        "hidden_states": (torch.float32, (2,)),
        "rope.0": (torch.float32, (3, 2, 2)), "rope.1": (torch.float64, (3, 2, 2)),
    }  # fmt: skip
    nested = found.nest(found.leaves)
    for one, own in zip(nested["rope"], given["rope"], strict=True):
        assert one.dtype == own.dtype
        assert torch.equal(one, own)
    halves = {name: leaf.bfloat16() if name == "rope.0" else leaf for name, leaf in found.leaves.items()}
    assert found.nest(halves)["rope"][0].dtype == torch.complex64
