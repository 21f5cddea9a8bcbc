"""The measuring of one comparison: variants run in turn, their records, and their errors."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.peer import UnsupportedError
from zeus_trt.evaluation.peers import Situation, apply_peer
from zeus_trt.evaluation.quality import measure_latent_error
from zeus_trt.evaluation.subject import Subject
from zeus_trt.evaluation.timing import count_flops, fetch, pair_runs, time_run
from zeus_trt.evaluation.variant_cache import Record, VariantCache, digest
from zeus_trt.evaluation.variants import Variant
from zeus_trt.evaluation.workload import Setting, make_full_setting
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Step
from zeus_trt.runtime.scheduler import SOLVERS
from zeus_trt.zeus_graph import SolverProgram
from zeus_trt.zeus_graph.noise_grid import measure_program
from zeus_trt.zeus_graph.row_table import write_table

_TRAJECTORY_SAMPLES = 2  # the error along the trajectory is measured on the first few


class Runner:
    """Measures variants, and keeps a record of each.

    Args:
        subject: What runs.
        numbers: The samples that every variant makes.
        timed: Those that are made again in timed rounds.
        cache: Records of an earlier comparison.
        on_run: Called with the number of full steps after every run.
    """

    def __init__(
        self,
        subject: Subject,
        numbers: tuple[int, ...],
        timed: tuple[int, ...],
        cache: VariantCache,
        on_run: Callable[[int], None] | None,
    ):
        self.records: dict[str, Record] = {}
        self.notes: dict[str, str] = {}
        self.errors: list[Exception] = []
        self._subject = subject
        self._numbers, self._timed = numbers, timed
        self._cache = cache
        self._on_run = on_run or (lambda nfe: None)
        self._machine = describe_machine()
        self._warm: set[tuple[str, str]] = set()
        self._programs: dict[tuple[str, int], SolverProgram] = {}
        self._run_id = uuid4().hex
        self._calibrated: dict[tuple[str, str], dict[str, list[float]]] = {}

    def run(self, variants: Sequence[Variant], rounds: int) -> None:
        """Runs the missing rounds, one after the other, every second one backwards.

        A run that an earlier call kept counts only with a full run of its round beside it. Where a variant runs, the
        full run of its group runs in the same round.
        """
        for variant in variants:
            if found := self._cache.load(self._key(variant)):
                self.records[variant.key] = found
            elif self._timed != self._numbers:
                self._attempt(variant, self._sample)
                self._on_run(variant.setting.plan.nfe)
        for number in range(rounds):
            lacking = {variant.key for variant in variants if self._count_rounds(variant) <= number}
            groups = {variant.group for variant in variants if variant.key in lacking}
            run = partial(self._run, round_=uuid4().hex)
            for variant in variants if number % 2 == 0 else variants[::-1]:
                needed = variant.key in lacking or (variant.is_full and variant.group in groups)
                if needed and variant.key not in self.notes:
                    self._attempt(variant, run)
                self._on_run(variant.setting.plan.nfe)

    def _count_rounds(self, variant: Variant) -> int:
        known, full = self.records.get(variant.key), self.records.get(variant.find_full().key)
        return len(pair_runs(known.runs, full.runs if full else known.runs)) if known else 0

    def follow(self, variants: Sequence[Variant]) -> None:
        """Measures the error along the trajectory where it is not known, group by group."""
        for group in dict.fromkeys(variant.group for variant in variants):
            paths: list[torch.Tensor] = []
            follow = partial(self._follow, paths=paths)
            for variant in variants:
                record = self.records.get(variant.key)
                is_known = record is None or record.trajectory_errors is not None or variant.key in self.notes
                if variant.group == group and not is_known:
                    self._attempt(variant, follow)

    def _sample(self, variant: Variant) -> None:
        with self._accelerated(variant):
            sample = fetch(self._subject.workload.run(variant.setting, self._numbers))
        self._keep(variant, Record((), sample.latents, sample.images))

    def _run(self, variant: Variant, round_: str) -> None:
        self._warm_up(variant)
        subject = self._subject
        with self._accelerated(variant, self._timed):
            run, sample = time_run(subject.workload, variant.setting, self._timed, subject.denoiser_class, round_)
        known = self.records.get(variant.key) or Record((), sample.latents, sample.images)
        known = replace(known, runs=(*known.runs, run))
        if variant.peer and not variant.setting.policy and known.nfe_equivalent is None:
            known = replace(known, nfe_equivalent=self._weigh(variant))
        self._keep(variant, known)

    def _follow(self, variant: Variant, paths: list[torch.Tensor]) -> None:
        """Compares the latents after every step with those of the full run, which first fills empty ``paths``."""
        numbers, workload = self._numbers[:_TRAJECTORY_SAMPLES], self._subject.workload
        if not paths:
            workload.run(variant.setting.full, numbers, lambda step: paths.append(step.latents.float().cpu().clone()))
        errors: list[float] = []

        def note(step: Step) -> None:
            errors.append(measure_latent_error(step.latents.float().cpu(), paths[step.index]))

        if variant.is_full:
            errors = [0.0] * len(paths)
        else:
            with self._accelerated(variant, numbers):
                workload.run(variant.setting, numbers, note)
        self._keep(variant, replace(self.records[variant.key], trajectory_errors=tuple(errors)))

    def _warm_up(self, variant: Variant) -> None:
        """Runs two steps, since the first call of an engine allocates, and may compile."""
        key = variant.setting.backend, variant.setting.solver
        if key not in self._warm:
            self._subject.workload.run(self._shorten(variant), self._timed)
            self._warm.add(key)

    def _shorten(self, variant: Variant) -> Setting:
        setting = variant.setting
        steps = min(2, setting.num_steps)
        return make_full_setting(self._subject.workload, steps, setting.solver, setting.backend, setting.mode)

    def _weigh(self, variant: Variant) -> float:
        """The work of a cache's run, in calls of the whole denoiser."""
        workload, short = self._subject.workload, self._shorten(variant)
        with self._accelerated(variant):
            work = count_flops(lambda: workload.run(variant.setting, self._numbers))
        return work * len(short.plan) / count_flops(lambda: workload.run(short, self._numbers))

    def _accelerated(self, variant: Variant, numbers: tuple[int, ...] | None = None) -> AbstractContextManager:
        if variant.peer is None or self._subject.module is None:
            return nullcontext()
        workload, setting = self._subject.workload, variant.setting
        bundle = getattr(workload, "bundle", None)
        situation = Situation(
            num_calls=setting.plan.nfe,
            guided=workload.describe().get("guidance_scale", 1.0) != 1.0,
            num_axes=self.records[variant.find_full().key].latents.ndim,
            is_flow=bundle is not None and bundle.manifest.prediction_type == "flow_prediction",
            run=lambda: workload.run(setting, numbers or self._numbers),
            calibrated=self._calibrated.setdefault((setting.solver, str(setting.plan)), {}),
        )
        return apply_peer(variant.peer, self._subject.module, situation)

    def _attempt(self, variant: Variant, work: Callable[[Variant], None]) -> None:
        try:
            work(variant)
        except Exception as error:
            expected = isinstance(error, ZeusError | UnsupportedError | RuntimeError | MemoryError)
            if not expected and variant.peer is None:
                raise
            self.notes[variant.key] = _explain(variant, error)
            self.errors += [error] if expected else []
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _keep(self, variant: Variant, record: Record) -> None:
        self.records[variant.key] = record
        self._cache.save(self._key(variant), record, self._describe(variant))

    def _describe(self, variant: Variant) -> dict[str, Any]:
        return {
            "cell": variant.describe() | self._identify(variant.setting),
            "engine": dict(self._subject.engines[variant.setting.backend].identity),
            "workload": dict(self._subject.workload.describe()),
            "numbers": list(self._numbers),
            "timed": list(self._timed),
            "machine": self._machine,
        }

    def _identify(self, setting: Setting) -> dict[str, Any]:
        """What a solver and a rule from outside do, which may change and keep their names; nothing for the others."""
        is_known, rule = setting.solver in ("default", *SOLVERS), setting.predictor
        if is_known and rule.rule is None:
            return {}
        key = setting.solver, setting.num_steps
        try:
            if key not in self._programs:
                self._programs[key] = self._subject.workload.program(setting.num_steps, setting.solver)
            program = self._programs[key]
            rows = rule.rows(setting.plan, measure_program(rule, program)) if rule.rule else ()
        except ZeusError:  # not traceable, or no rule for this plan
            return {"run": self._run_id}  # of this comparison alone
        weights = write_table({step: row for step, row in enumerate(rows) if row})
        return {"fingerprint": program.fingerprint, "weights": weights}

    def _key(self, variant: Variant) -> str:
        return digest(self._describe(variant))


def _explain(variant: Variant, error: Exception) -> str:
    """One line: no memory, a peer that does not support the model, or another failure."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    if any(_is_out_of_memory(one) for one in chain):
        return f"out of memory: {_first_line(chain[-1])}"
    if variant.peer:
        return f"not supported: {_first_line(error if isinstance(error, UnsupportedError) else chain[-1])}"
    return f"failed: {_first_line(error)}"


def _is_out_of_memory(error: BaseException) -> bool:
    words = ("out of memory", "not enough memory", "can't allocate memory")
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in words)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
