"""The comparison: every variant runs in turn from the same latents, and is measured against the full runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.perceptual import explain_absence
from zeus_trt.evaluation.quality import name_metric
from zeus_trt.evaluation.report import write_report
from zeus_trt.evaluation.runner import Runner
from zeus_trt.evaluation.subject import EAGER, Subject
from zeus_trt.evaluation.summary import make_rows
from zeus_trt.evaluation.variant_cache import VariantCache
from zeus_trt.evaluation.variants import Variant
from zeus_trt.machine import describe_machine

_REFERENCE_SAMPLES = 4  # the error to the eager model is measured on the first few, where it is no row itself


def compare(
    subject: Subject,
    variants: Sequence[Variant],
    options: MeasureOptions | None = None,
    *,
    output: Path | None = None,
    command: str | None = None,
    on_run: Callable[[int], None] | None = None,
) -> Comparison:
    """Runs every variant from the same noise, in turn, and measures it.

    Each round runs all variants right after each other, every second round backwards, and a speed-up compares the times
    of one round only, so that a machine whose speed drifts favours no variant. A variant that does not fit in memory,
    or a peer that does not support the model, becomes a row that says so.

    Args:
        subject: What runs.
        variants: As ``make_variants`` makes them: each group has its full run.
        options: How; the defaults of ``MeasureOptions`` without one.
        output: Folder for the report; its measured variants are not measured again.
        command: The command line that repeats it, for the report.
        on_run: Called with the number of full steps after every run.

    Raises:
        ZeusError: A folder that cannot be made, or the first error where no variant ran.
    """
    options = options or MeasureOptions()
    if output is not None:
        make_folder(output)
    cache = VariantCache(output / "cells" if output else None)
    runner = Runner(subject, options.numbers, options.timed, cache, on_run)
    few = options.numbers[:_REFERENCE_SAMPLES]
    eager = Runner(subject, few, few, cache, on_run)
    runnable = [variant for variant in variants if variant.setting.backend in subject.backends]
    if options.reference and EAGER in subject.backends:
        fulls = {(full := variant.find_full(EAGER)).key: full for variant in runnable}
        eager.run([full for key, full in fulls.items() if key not in {one.key for one in runnable}], rounds=1)
    runner.run(runnable, options.rounds)
    if output is not None and options.trajectories:
        runner.follow(runnable)
    if not runner.records:
        raise runner.errors[0]
    comparison = _summarize(subject, variants, options, runner, eager, command)
    if output is not None:
        records = {index: runner.records.get(variant.key) for index, variant in enumerate(variants)}
        write_report(comparison, {index: record.images for index, record in records.items() if record}, output)
    return comparison


def _summarize(
    subject: Subject,
    variants: Sequence[Variant],
    options: MeasureOptions,
    runner: Runner,
    eager: Runner,
    command: str | None,
) -> Comparison:
    notes = {
        variant.key: f"not available: {problem}"
        for variant in variants
        if (problem := subject.engines[variant.setting.backend].problem)
    }
    untimed = {key: replace(record, runs=()) for key, record in eager.records.items()}
    settings: dict[str, Any] = {
        **subject.workload.describe(),
        "model": subject.name,
        "num_images": options.num_images,
        "timed_images": len(options.timed),
        "rounds": options.rounds,
        "command": command,
        "metrics": [name_metric(metric) for metric in options.metrics],
        "eager_samples": next((len(record.latents) for record in untimed.values()), options.num_images),
        "has_eager_reference": options.reference and EAGER in subject.backends,
    }
    absences = [
        reason for metric in options.metrics if (reason := explain_absence(name_metric(metric), options.num_images))
    ]
    return Comparison(
        settings=settings,
        machine=describe_machine(),
        engines={name: subject.engines[name] for name in subject.backends},
        missing_metrics=(*absences, *(f"eager reference: {note}" for note in eager.notes.values())),
        rows=make_rows(variants, untimed | runner.records, runner.notes | notes, options),
    )


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
