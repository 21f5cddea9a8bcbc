"""Writes the denoiser of foreign_edm.py with torch alone: a program of torch.export.

python examples/foreign_program.py -o mixture.pt2
python examples/foreign_program.py -o compiled.pt2 --compile     as a package of AOTInductor
"""

import runpy
import sys
from pathlib import Path

import torch


class Mixture(torch.nn.Module):
    """``D(x; sigma)`` for digits of a label, 10 for all of them; see foreign_edm.py."""

    def __init__(self, means: torch.Tensor, labels: torch.Tensor, spread: float):
        super().__init__()
        self.spread = spread
        self.register_buffer("means", means)
        self.register_buffer("labels", labels)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        flat, variance = x.flatten(1), (sigma**2)[:, None]
        total = variance + self.spread**2
        near = flat @ self.means.T - (self.means**2).sum(1) / 2
        fits = (label[:, None] == self.labels) | (label[:, None] == 10)
        mean = torch.where(fits, near / total, -1e9).softmax(1) @ self.means
        return ((variance * mean + self.spread**2 * flat) / total).reshape(x.shape)


def write(path: str | Path, compiles: bool = False) -> None:
    """Writes the program, or the package that it is compiled to; its batch may be any size."""
    edm = runpy.run_path(str(Path(__file__).with_name("foreign_edm.py")))
    model = Mixture(*map(torch.from_numpy, edm["read_means"]()), edm["SPREAD"])
    batch = torch.export.Dim("batch")
    noisy = torch.zeros(2, 1, edm["SIDE"], edm["SIDE"])
    inputs = {"x": noisy, "sigma": torch.ones(2), "label": torch.tensor([3, 7])}
    program = torch.export.export(model, (), inputs, dynamic_shapes={name: {0: batch} for name in inputs})
    if compiles:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    else:
        torch.export.save(program, path)


if __name__ == "__main__":
    write(sys.argv[2], compiles="--compile" in sys.argv)
