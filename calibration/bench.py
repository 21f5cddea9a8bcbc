"""Measuring plans against full runs that are made once."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.evaluation.workload import Sample, Setting, Workload
from zeus_trt.zeus_graph import Plan


class Bench:
    """Runs samples by number, and keeps the pictures of full runs and the PSNR of all others.

    Args:
        workload: The model.
        setting: How it runs; its plan gives the number of evaluations only.
        batch: Samples at a time.
        on_calls: Called after every batch with its number of denoiser evaluations, counted for each sample.
    """

    def __init__(
        self, workload: Workload, setting: Setting, batch: int = 16, on_calls: Callable[[int], Any] | None = None
    ):
        self.calls = 0
        self._workload, self._setting, self._batch, self._on_calls = workload, setting, batch, on_calls
        self._references: dict[int, torch.Tensor] = {}
        self._psnr: dict[tuple[str, str], dict[int, float]] = {}

    def measure(self, plan: Plan, numbers: Sequence[int]) -> float:
        """Mean PSNR in dB to the full runs of these samples, without equal ones; infinity if all are equal."""
        setting = replace(self._setting, plan=plan)
        known = self._psnr.setdefault((str(plan), repr(setting.predictor.to_json())), {})
        for part, sample in self._run(setting, [number for number in numbers if number not in known]):
            self._make_references(part)
            for number, images in zip(part, sample.images, strict=True):
                known[number] = measure_psnr(_as_batch(images), _as_batch(self._references[number]))
        values = [value for number in numbers if math.isfinite(value := known[number])]
        return sum(values) / len(values) if values else math.inf

    def _make_references(self, numbers: Sequence[int]) -> None:
        missing = [number for number in numbers if number not in self._references]
        for part, sample in self._run(self._setting.full, missing):
            self._references.update(zip(part, sample.images, strict=True))

    def _run(self, setting: Setting, numbers: Sequence[int]) -> Iterator[tuple[Sequence[int], Sample]]:
        for start in range(0, len(numbers), self._batch):
            part = numbers[start : start + self._batch]
            sample = self._workload.run(setting, part)
            calls = sample.report.nfe * len(part)
            self.calls += calls
            if self._on_calls:
                self._on_calls(calls)
            yield part, sample


def _as_batch(images: torch.Tensor) -> torch.Tensor:
    """One picture (channels, height, width), or the frames of one video, as a batch of pictures."""
    return images if images.ndim == 4 else images[None]
