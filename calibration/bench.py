"""Measuring plans against full runs that are made once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.evaluation.workload import Sample, Setting, Workload
from zeus_trt.zeus_graph import Plan, Predictor


class Bench:
    """Runs samples by number; whatever has been run is remembered, full runs by their pictures, others by their PSNR.

    Args:
        workload: What is sampled.
        num_steps: Solver steps.
        solver: As in ``Setting``.
        backend: As in ``Setting``.
        batch: Samples at a time.
        on_calls: Called after every batch with its number of denoiser evaluations, those of each sample.
    """

    def __init__(
        self,
        workload: Workload,
        num_steps: int = 50,
        solver: str = "default",
        backend: str = "onnxruntime",
        batch: int = 16,
        on_calls: Callable[[int], Any] | None = None,
    ):
        self.calls = 0
        self._workload, self._batch, self._on_calls = workload, batch, on_calls
        self._shared: dict[str, Any] = {"num_steps": num_steps, "solver": solver, "backend": backend}
        self._full = Plan("F" * workload.count_evaluations(num_steps, solver))
        self._references: dict[int, torch.Tensor] = {}
        self._psnr: dict[tuple[str, str], dict[int, float]] = {}

    def measure(self, plan: Plan, predictor: str | Predictor, numbers: Sequence[int]) -> float:
        """Mean PSNR in dB to the full runs of these samples; those that are equal are left out; infinity if all are."""
        key = (str(plan), repr(Predictor.parse(predictor).to_json()))
        known = self._psnr.setdefault(key, {})
        missing = [number for number in numbers if number not in known]
        for part, sample in self._run(plan, predictor, missing):
            self._refer(part)
            for number, images in zip(part, sample.images, strict=True):
                known[number] = measure_psnr(_as_batch(images), _as_batch(self._references[number]))
        values = [value for number in numbers if math.isfinite(value := known[number])]
        return sum(values) / len(values) if values else math.inf

    def _refer(self, numbers: Sequence[int]) -> None:
        missing = [number for number in numbers if number not in self._references]
        for part, sample in self._run(self._full, "zeus", missing):
            self._references.update(zip(part, sample.images, strict=True))

    def _run(self, plan: Plan, predictor: str | Predictor, numbers: Sequence[int]):
        setting = Setting(plan, predictor=predictor, **self._shared)
        for start in range(0, len(numbers), self._batch):
            part = numbers[start : start + self._batch]
            sample: Sample = self._workload.run(setting, part)
            calls = sample.report.nfe * len(part)
            self.calls += calls
            if self._on_calls:
                self._on_calls(calls)
            yield part, sample


def _as_batch(images: torch.Tensor) -> torch.Tensor:
    """One picture (channels, height, width), or the frames of one video, as a batch of pictures."""
    return images if images.ndim == 4 else images[None]
