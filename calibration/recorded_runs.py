"""Runs of a workload whose engine calls are recorded."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zeus_trt.calibration.recording import Recorder, Recording
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.workload import SessionWorkload, Setting
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.zeus_graph import Plan

_FLOAT, _OTHER = "onnxruntime", "quantized"  # what engines are asked for by


class RecordedRuns:
    """Runs samples with an engine that is recorded, and with another one to compare with.

    Args:
        workload: The model, before anything has run.
        engine: What is recorded.
        num_steps: Solver steps.
        solver: As in ``Setting``.
        plan: The plan; every step full by default. Steps ``Q`` run as full ones: they are those of the new graph.
        on_calls: Called after every sample with its number of full steps.

    Raises:
        ZeusError: A plan of another length, or a model that does not run.
    """

    def __init__(
        self,
        workload: SessionWorkload | PipelineWorkload,
        engine: Denoiser,
        num_steps: int = 50,
        solver: str = "default",
        plan: Plan | None = None,
        on_calls: Callable[[int], Any] | None = None,
    ):
        self._recorder = Recorder(engine)
        workload.engines[_FLOAT] = self._recorder
        count = workload.count_evaluations(num_steps, solver)
        plan = plan.check_length(count) if plan else Plan("F" * count)
        letter = "Q" if "Q" in plan.steps else "F"
        self.steps = tuple(step for step, kind in enumerate(plan.steps) if kind == letter)
        """The steps that call the new graph."""
        self.plan = plan
        self._workload, self._on_calls = workload, on_calls
        self._setting = Setting(replace(plan, steps=plan.steps.replace("Q", "F")), num_steps, solver, _FLOAT)

    def record(self, numbers: Sequence[int], folder: Path) -> tuple[Recording, torch.Tensor]:
        """Runs samples one at a time; returns the calls at ``steps``, and the images (sample, ...).

        Raises:
            ZeusError: A step without a call of every sample.
        """
        folder.mkdir()
        recording = Recording(folder, self.steps)
        with self._recorder.into(recording):
            images = self._run(self._setting, numbers)
        calls = Counter(call.step for call in recording.calls)
        if missing := [step for step in self.steps if calls[step] < len(numbers)]:
            raise ZeusError(
                f"recording: got {calls[missing[0]]} calls at step {missing[0]} of {len(numbers)} samples; expected "
                "one of each at every step that the plan runs. Give a plan that this model runs as it is written."
            )
        return recording, images

    def run(self, engine: Denoiser, numbers: Sequence[int]) -> torch.Tensor:
        """Images (sample, ...) of the same runs with another engine; the first that is given stays."""
        self._workload.engines.setdefault(_OTHER, engine)
        return self._run(replace(self._setting, backend=_OTHER), numbers)

    def _run(self, setting: Setting, numbers: Sequence[int]) -> torch.Tensor:
        images = []
        for number in numbers:
            sample = self._workload.run(setting, [number], on_step=self._recorder.tag)
            images.append(sample.images)
            if self._on_calls:
                self._on_calls(sample.report.nfe)
        return torch.cat(images)
