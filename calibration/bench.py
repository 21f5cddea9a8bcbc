"""Measuring plans against full runs that are made once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from zeus_trt.calibration.objective import average
from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.evaluation.workload import Sample, Setting, Workload
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import MEAN


class Bench:
    """Runs samples by number, and keeps the pictures of full runs and the PSNR of all others.

    Args:
        workload: The model.
        setting: How it runs; its plan gives the number of evaluations only.
        batch: Samples at a time.
        on_calls: Called after every batch with its number of denoiser evaluations, counted for each sample.
        solvers: Several solvers, which the samples have in turn by their numbers; by default that of ``setting``.
        objective: As in ``average``.
    """

    def __init__(
        self,
        workload: Workload,
        setting: Setting,
        batch: int = 16,
        on_calls: Callable[[int], Any] | None = None,
        solvers: Sequence[str] = (),
        objective: str = MEAN,
    ):
        self.calls = 0
        self._workload, self._setting, self._batch, self._on_calls = workload, setting, batch, on_calls
        self._solvers, self._objective = solvers or (setting.solver,), objective
        self._references: dict[int, torch.Tensor] = {}
        self._psnr: dict[tuple[str, str], dict[int, float]] = {}

    def measure(self, plan: Plan, numbers: Sequence[int]) -> float:
        """PSNR in dB to the full runs of these samples, by the objective; infinity if all are equal."""
        return average(self.list_psnr(plan, numbers), self._objective)

    def list_psnr(self, plan: Plan, numbers: Sequence[int]) -> list[float]:
        """PSNR in dB of each of these samples to its full run; infinity if it is equal."""
        setting = replace(self._setting, plan=plan)
        known = self._psnr.setdefault((str(plan), repr(setting.predictor.to_json())), {})
        for part, sample in self._run(setting, [number for number in numbers if number not in known]):
            self._make_references(part)
            for number, images in zip(part, sample.images, strict=True):
                known[number] = measure_psnr(_as_batch(images), _as_batch(self._references[number]))
        return [known[number] for number in numbers]

    def _make_references(self, numbers: Sequence[int]) -> None:
        missing = [number for number in numbers if number not in self._references]
        for part, sample in self._run(self._setting.full, missing):
            self._references.update(zip(part, sample.images, strict=True))

    def _run(self, setting: Setting, numbers: Sequence[int]) -> Iterator[tuple[Sequence[int], Sample]]:
        for solver, own in split_numbers(self._solvers, numbers).items():
            for start in range(0, len(own), self._batch):
                part = own[start : start + self._batch]
                sample = self._workload.run(replace(setting, solver=solver), part)
                calls = sample.report.nfe * len(part)
                self.calls += calls
                if self._on_calls:
                    self._on_calls(calls)
                yield part, sample


def split_numbers(solvers: Sequence[str], numbers: Sequence[int]) -> dict[str, list[int]]:
    """The samples of each solver: they have the solvers in turn."""
    return {
        solver: [number for number in numbers if number % len(solvers) == place]
        for place, solver in enumerate(solvers)
    }  # fmt: skip


def _as_batch(images: torch.Tensor) -> torch.Tensor:
    """One picture (channels, height, width), or the frames of one video, as a batch of pictures."""
    return images if images.ndim == 4 else images[None]
