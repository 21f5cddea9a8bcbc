"""Denoisers as others compile them: packages of AOTInductor, in the formulas of ``foreign_graphs``."""

import hashlib
from pathlib import Path

import torch
from foreign_graphs import DATA, MEAN, SPREAD
from torch.export import Dim


def find_clean(noisy, sigma):
    """The best clean latents of ``foreign_graphs``, in torch."""
    total = SPREAD**2 + sigma**2
    return (SPREAD**2 * noisy + sigma**2 * MEAN * torch.tanh(MEAN * noisy / total)) / total


class Bare(torch.nn.Module):
    """F of Karras et al., whose preconditioning is outside; it is called by names, and its pixels move by a label."""

    def forward(self, x, noise_level, label):
        sigma = (4 * noise_level).exp()[:, None, None, None]
        spread = (sigma**2 + DATA**2).sqrt()
        noisy = x * spread
        clean = find_clean(noisy - 0.01 * label[:, None, None, None], sigma)
        return (clean - DATA**2 / spread**2 * noisy) * spread / (sigma * DATA)


class Whole(torch.nn.Module):
    """D(x; sigma) of one row and a scalar, called by places, whose second tensor is the picture."""

    def forward(self, x, flag, sigma):
        return x.mean(), find_clean(x, sigma) if flag else x


class Flow(torch.nn.Module):
    """The clean pixels of flow matching, in bfloat16; reads ln(sigma), and text whose weights are zeros."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16))

    def forward(self, *, x, level, given):
        sigma = level.float().exp()
        a, noisy = 1 - sigma, x.float()
        total = a**2 * SPREAD**2 + sigma**2
        clean = (SPREAD**2 * a * noisy + sigma**2 * MEAN * torch.tanh(MEAN * a * noisy / total)) / total
        return clean.to(x.dtype) + (given["text"] @ self.weight).mean((1, 2))[:, None, None, None]


_ROWS, _HALF, _LENGTH = Dim("rows", max=64), Dim("half", max=8), Dim("length", min=4, max=30)
_CALLS = {
    "bare": (
        Bare, (), {"x": torch.zeros(2, 1, 4, 4), "noise_level": torch.zeros(2), "label": torch.tensor([1, 2])},
        {"x": {0: _ROWS}, "noise_level": {0: _ROWS}, "label": {0: _ROWS}},
    ),
    "whole": (Whole, (torch.zeros(1, 1, 4, 4), True, torch.tensor(1.0)), {}, None),
    "flow": (
        Flow, (), {
            "x": torch.zeros(2, 1, 8, 16, dtype=torch.bfloat16),
            "level": torch.zeros(2, 1, 1, 1, dtype=torch.bfloat16),
            "given": {"text": torch.zeros(2, 6, 4, dtype=torch.bfloat16)},
        },
        {"x": {0: _ROWS, 2: 2 * _HALF, 3: 4 * _HALF}, "level": {0: _ROWS}, "given": {"text": {0: _ROWS, 1: _LENGTH}}},
    ),
}  # fmt: skip


def compile_foreign(fetch, name):
    """The package of a name, compiled once for as long as this file stays as it is.

    Args:
        fetch: The fixture ``cached_bundle``.
        name: ``bare``, ``whole`` or ``flow``.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        module, args, kwargs, shapes = _CALLS[name]
        program = torch.export.export(module().eval(), args, kwargs, dynamic_shapes=shapes)
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(program, package_path=str(folder / f"{name}.pt2"))

    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    return fetch(f"package-{name}-{version}", make) / f"{name}.pt2"
