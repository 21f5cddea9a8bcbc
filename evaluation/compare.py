"""The comparison: every cell run in turn from the same latents, and measured against the full runs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.cell_cache import CellCache, Record, digest
from zeus_trt.evaluation.cells import Cell
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.peers import Situation, UnsupportedError, apply_peer
from zeus_trt.evaluation.perceptual import explain_absence
from zeus_trt.evaluation.quality import METRICS, check_metrics, measure_latent_error
from zeus_trt.evaluation.report import write_report
from zeus_trt.evaluation.rows import make_rows, pair_runs
from zeus_trt.evaluation.subject import EAGER, Subject
from zeus_trt.evaluation.timing import count_flops, fetch, time_run
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Step
from zeus_trt.zeus_graph import Plan

_TRAJECTORY_SAMPLES = 2  # the error along the trajectory is measured on the first few
_REFERENCE_SAMPLES = 4  # and so is that to the eager model, where it is no row itself


def compare(
    subject: Subject,
    cells: Sequence[Cell],
    *,
    num_images: int = 8,
    rounds: int = 3,
    metrics: Sequence[str] = METRICS,
    output: Path | None = None,
    reference: bool = True,
    trajectories: bool = True,
    timed_images: int | None = None,
    command: str | None = None,
    on_run: Callable[[int], None] | None = None,
) -> Comparison:
    """Runs every cell from the same noise, in turn, and measures it.

    Each round runs all cells right after each other, every second round backwards, and a speed-up compares the times of
    one round only, so that a machine whose speed drifts favours no cell. A cell that does not fit in memory, or a peer
    that does not support the model, becomes a row that says so.

    Args:
        subject: What runs.
        cells: As ``make_cells`` makes them: each group has its full run.
        num_images: Samples 0 .. num_images - 1, run as one batch.
        rounds: Timed runs of each cell.
        metrics: Of ``METRICS``.
        output: Folder for the report; what is already measured there is not measured again.
        reference: Measure against the full run of the eager model too, where there is one.
        trajectories: Measure the error after every step too, for the report.
        timed_images: Time runs of the first few samples only, so that rounds are short; all by default.
        command: What repeats it on the command line, for the report.
        on_run: Called with the number of full steps after every run.

    Raises:
        ZeusError: An unknown metric, a folder that cannot be made, or the fault of the first cell where none ran.
    """
    check_metrics(tuple(metrics))
    if output is not None:
        make_folder(output)
    numbers, cache = tuple(range(num_images)), CellCache(output / "cells" if output else None)
    timed = numbers if timed_images is None else numbers[:timed_images]
    bench = _Bench(subject, numbers, timed, cache, on_run)
    few = numbers[:_REFERENCE_SAMPLES]
    eager = _Bench(subject, few, few, cache, on_run)
    runnable = [cell for cell in cells if cell.setting.backend in subject.backends]
    if reference and EAGER in subject.backends:
        fulls = {(full := cell.find_full(EAGER)).key: full for cell in runnable}
        eager.run([full for key, full in fulls.items() if key not in {cell.key for cell in runnable}], rounds=1)
    bench.run(runnable, rounds)
    if output is not None and trajectories:
        bench.follow(runnable)
    num_eager = next((len(record.latents) for record in eager.records.values()), num_images)
    untimed = {key: replace(record, runs=()) for key, record in eager.records.items()}
    if not any(cell.key in bench.records for cell in cells):
        raise bench.faults[0]
    for cell in cells:
        if problem := cell.setting.backend not in subject.backends and subject.engines[cell.setting.backend].problem:
            bench.notes[cell.key] = f"not available: {problem}"
    comparison = Comparison(
        settings={
            **subject.workload.describe(), "model": subject.name, "num_images": num_images, "timed_images": len(timed),
            "rounds": rounds, "command": command, "metrics": list(metrics), "eager_samples": num_eager,
            "has_eager_reference": reference and EAGER in subject.backends,
        },
        machine=describe_machine(),
        engines={name: subject.engines[name] for name in subject.backends},
        missing_metrics=(
            *(reason for name in metrics if (reason := explain_absence(name))),
            *(f"eager reference: {note}" for note in eager.notes.values()),
        ),
        rows=make_rows(cells, untimed | bench.records, bench.notes, rounds, len(timed), tuple(metrics)),
    )  # fmt: skip
    if output is not None:
        images = {index: bench.records[cell.key].images for index, cell in enumerate(cells)
                  if cell.key in bench.records}  # fmt: skip
        write_report(comparison, images, output)
    return comparison


def make_folder(output: Path) -> None:
    """Makes the folder of a report.

    Raises:
        ZeusError: It cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZeusError(
            f"output: got {output}, which cannot be made ({error.strerror}); expected a writable folder. "
            "Choose another."
        ) from error


class _Bench:
    """The measuring of one comparison: what is known of each cell, and what went wrong with it."""

    def __init__(
        self, subject: Subject, numbers: tuple[int, ...], timed: tuple[int, ...], cache: CellCache,
        on_run: Callable[[int], None] | None,
    ):  # fmt: skip
        self.records: dict[str, Record] = {}
        self.notes: dict[str, str] = {}
        self.faults: list[Exception] = []
        self._subject = subject
        self._numbers, self._timed = numbers, timed
        self._cache = cache
        self._on_run = on_run or (lambda nfe: None)
        self._machine = describe_machine()
        self._warm: set[tuple[str, str]] = set()
        self._calibrated: dict[tuple[str, int], dict[str, list[float]]] = {}

    def run(self, cells: Sequence[Cell], rounds: int) -> None:
        """Runs what is missing, a round after the other, forth and back.

        A run that was kept by an earlier call and has no full run of its round beside it does not count. Where a cell
        is run, the full run of its group is run in the same round.
        """
        for cell in cells:
            if found := self._cache.load(self._key(cell)):
                self.records[cell.key] = found
            elif self._timed != self._numbers:
                self._attempt(cell, self._sample)
                self._on_run(cell.setting.plan.nfe)
        for number in range(rounds):
            lacking = {cell.key for cell in cells if self._count_rounds(cell) <= number}
            groups = {cell.group for cell in cells if cell.key in lacking}
            run = partial(self._run, round_=uuid4().hex)
            for cell in cells if number % 2 == 0 else cells[::-1]:
                needed = cell.key in lacking or (cell.is_full and cell.group in groups)
                if needed and cell.key not in self.notes:
                    self._attempt(cell, run)
                self._on_run(cell.setting.plan.nfe)

    def _count_rounds(self, cell: Cell) -> int:
        known, full = self.records.get(cell.key), self.records.get(cell.find_full().key)
        return len(pair_runs(known.runs, full.runs if full else known.runs)) if known else 0

    def follow(self, cells: Sequence[Cell]) -> None:
        """Measures the error along the trajectory where it is not known, group by group."""
        for group in dict.fromkeys(cell.group for cell in cells):
            paths: list[torch.Tensor] = []
            follow = partial(self._follow, paths=paths)
            for cell in cells:
                record = self.records.get(cell.key)
                if cell.group == group and record and record.trajectory_errors is None and cell.key not in self.notes:
                    self._attempt(cell, follow)

    def _sample(self, cell: Cell) -> None:
        with self._accelerated(cell):
            sample = fetch(self._subject.workload.run(cell.setting, self._numbers))
        self._keep(cell, Record((), sample.latents, sample.images))

    def _run(self, cell: Cell, round_: str) -> None:
        self._warm_up(cell)
        subject = self._subject
        with self._accelerated(cell, self._timed):
            run, sample = time_run(subject.workload, cell.setting, self._timed, subject.denoiser_class, round_)
        known = self.records.get(cell.key) or Record((), sample.latents, sample.images)
        known = replace(known, runs=(*known.runs, run))
        if cell.peer and known.nfe_equivalent is None:
            known = replace(known, nfe_equivalent=self._weigh(cell))
        self._keep(cell, known)

    def _follow(self, cell: Cell, paths: list[torch.Tensor]) -> None:
        """Compares the latents after every step with those of the full run, whose ``paths`` are run if not there."""
        numbers, workload = self._numbers[:_TRAJECTORY_SAMPLES], self._subject.workload
        full = cell.find_full().setting
        if not paths:
            workload.run(full, numbers, lambda step: paths.append(step.latents.float().cpu().clone()))
        errors: list[float] = []

        def note(step: Step) -> None:
            errors.append(measure_latent_error(step.latents.float().cpu(), paths[step.index]))

        if cell.is_full:
            errors = [0.0] * len(paths)
        else:
            with self._accelerated(cell, numbers):
                workload.run(cell.setting, numbers, note)
        self._keep(cell, replace(self.records[cell.key], trajectory_errors=tuple(errors)))

    def _warm_up(self, cell: Cell) -> None:
        """Two steps, since the first call of an engine allocates, and may compile."""
        key = cell.setting.backend, cell.setting.solver
        if key not in self._warm:
            self._subject.workload.run(self._shorten(cell), self._timed)
            self._warm.add(key)

    def _shorten(self, cell: Cell) -> Any:
        setting = cell.find_full().setting
        steps = min(2, setting.num_steps)
        count = self._subject.workload.count_evaluations(steps, setting.solver)
        return replace(setting, plan=Plan.uniform(count, 0), num_steps=steps)

    def _weigh(self, cell: Cell) -> float:
        """The work of a peer's run, in calls of the whole denoiser."""
        workload, short = self._subject.workload, self._shorten(cell)
        with self._accelerated(cell):
            work = count_flops(lambda: workload.run(cell.setting, self._numbers))
        return work * len(short.plan) / count_flops(lambda: workload.run(short, self._numbers))

    def _accelerated(self, cell: Cell, numbers: tuple[int, ...] | None = None) -> AbstractContextManager:
        if cell.peer is None or self._subject.module is None:
            return nullcontext()
        workload, full = self._subject.workload, cell.find_full().setting
        situation = Situation(
            num_evaluations=len(full.plan),
            guided=workload.describe().get("guidance_scale", 1.0) != 1.0,
            num_axes=self.records[cell.find_full().key].latents.ndim,
            run=lambda: workload.run(full, numbers or self._numbers),
            calibrated=self._calibrated.setdefault((full.solver, full.num_steps), {}),
        )
        return apply_peer(cell.peer, self._subject.module, situation)

    def _attempt(self, cell: Cell, work: Callable[[Cell], None]) -> None:
        try:
            work(cell)
        except (ZeusError, UnsupportedError, RuntimeError, MemoryError) as error:
            self.notes[cell.key] = _explain(cell, error)
            self.faults.append(error)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        except Exception as error:
            if cell.peer is None:
                raise
            self.notes[cell.key] = _explain(cell, error)

    def _keep(self, cell: Cell, record: Record) -> None:
        self.records[cell.key] = record
        self._cache.save(self._key(cell), record, self._meaning(cell))

    def _meaning(self, cell: Cell) -> dict[str, Any]:
        return {
            "cell": cell.describe(),
            "engine": dict(self._subject.engines[cell.setting.backend].identity),
            "workload": dict(self._subject.workload.describe()),
            "numbers": list(self._numbers),
            "timed": list(self._timed),
            "machine": self._machine,
        }

    def _key(self, cell: Cell) -> str:
        return digest(self._meaning(cell))


def _explain(cell: Cell, error: Exception) -> str:
    """One line: no memory, a peer that does not support the model, or another failure."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    if any(_is_out_of_memory(one) for one in chain):
        return f"out of memory: {_first_line(chain[-1])}"
    if cell.peer:
        return f"not supported: {_first_line(error if isinstance(error, UnsupportedError) else chain[-1])}"
    return f"failed: {_first_line(error)}"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in ("out of memory", "not enough memory", "can't allocate memory")
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
