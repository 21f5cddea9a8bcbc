"""The rows of a comparison, from the records of its variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, isfinite
from statistics import median

from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.pipeline_workload import EAGER
from zeus_trt.evaluation.quality import UNMEASURED, Metric, Quality, measure_psnr, measure_quality
from zeus_trt.evaluation.row import SPREAD_LIMIT, Row, Speedup, Times
from zeus_trt.evaluation.timing import Run, pair_runs
from zeus_trt.evaluation.variant_cache import Record
from zeus_trt.evaluation.variants import Variant
from zeus_trt.runtime.bundle.precision import QUANTIZED
from zeus_trt.zeus_graph import Plan


def make_rows(
    variants: Sequence[Variant], records: Mapping[str, Record], notes: Mapping[str, str], options: MeasureOptions
) -> tuple[Row, ...]:
    """Makes one row per variant.

    Args:
        variants: In the order of the rows.
        records: Of every variant that ran, by its key, and of the full runs of the eager model.
        notes: Why a variant did not run, by its key.
        options: Rounds, images and metrics.

    Raises:
        ZeusError: Images of another size than those of the full run.
    """
    rows = []
    for variant in variants:
        record, note, setting = records.get(variant.key), notes.get(variant.key), variant.setting
        row = Row(
            label=variant.label, backend=setting.backend, solver=setting.solver, num_steps=setting.num_steps,
            ratio=variant.ratio, plan=str(setting.plan), predictor=str(setting.predictor),
            peer=str(variant.peer) if variant.peer else None, note=note,
        )  # fmt: skip
        if record and not note:
            row = _fill(row, variant, record, _find_references(variant, variants, records), options)
        rows.append(row)
    return tuple(rows)


@dataclass(frozen=True)
class _References:
    """Full runs that a variant is measured against: its own, the eager model's, and that of the most steps.

    ``unquantized`` is the same run on the engine of the bundle's first graph, for an engine of a quantized graph.
    """

    full: Record | None
    eager: Record | None
    longest: Record | None
    unquantized: Record | None = None


def _find_references(variant: Variant, variants: Sequence[Variant], records: Mapping[str, Record]) -> _References:
    alike = [other for other in variants if other.is_full and other.group[:2] == variant.group[:2]]
    longest = max(alike, key=lambda other: other.setting.num_steps, default=None)
    setting, (kind, _, precision) = variant.setting, variant.setting.backend.partition(":")
    unquantized = replace(variant, setting=replace(setting, backend=kind)) if precision in QUANTIZED else None
    several = len({other.setting.num_steps for other in alike}) > 1
    return _References(
        records.get(variant.find_full().key),
        records.get(variant.find_full(EAGER).key),
        records.get(longest.key) if longest and several else None,
        records.get(unquantized.key) if unquantized else None,
    )


def _fill(row: Row, variant: Variant, record: Record, references: _References, options: MeasureOptions) -> Row:
    rounds, num_images, metrics = options.rounds, len(options.timed), options.metrics
    full, eager = references.full, references.eager
    runs = pair_runs(record.runs, full.runs if full else ())[:rounds] or record.runs[:rounds]
    first, plan = runs[0], variant.setting.plan
    times = _summarize(runs, num_images)
    speedup = compare_times(runs, full.runs) if full else None
    full_times = _summarize(full.runs[:rounds], num_images) if full and full.runs else None
    devices = [run.device_mib for run in runs if run.device_mib is not None]
    work = record.nfe_equivalent or (first.work if variant.setting.policy else 0.0) or float(first.nfe)
    bound = _bound(plan, times, full_times, len(plan) / work)
    return replace(
        row,
        plan=first.plan,
        mode=first.mode,
        nfe=first.nfe,
        nfe_equivalent=work,
        speedup_bound=bound,
        run_bound=_bound_run(full_times, bound) if full_times else None,
        times=times,
        speedup=speedup,
        speedup_to_eager=compare_times(runs, eager.runs) if eager else None,
        host_mib=max(run.host_mib for run in runs),
        device_mib=max(devices, default=None),
        to_full=_measure(record, full, metrics),
        to_eager=_measure(record, eager, metrics),
        to_longest=_measure(record, references.longest, metrics),
        image_psnr_db=_measure_each(record, full) if full and "psnr" in metrics else (),
        trajectory_errors=record.trajectory_errors,
        marks=mark(variant, runs, times, speedup, full_times) + mark_slower(runs, references.unquantized),
    )


def _summarize(runs: Sequence[Run], num_images: int) -> Times:
    totals = [run.total_ms for run in runs]
    return Times(
        total_ms=median(totals),
        total_ms_min=min(totals),
        total_ms_max=max(totals),
        engine_ms=median(run.engine_ms for run in runs),
        loop_ms=median(run.loop_ms for run in runs),
        ms_per_image=median(totals) / num_images,
        parts_ms={name: median(run.parts_ms.get(name, 0.0) for run in runs)
                  for name in dict.fromkeys(name for run in runs for name in run.parts_ms)},
    )  # fmt: skip


def _bound_run(full: Times, bound: float) -> float:
    """The bound of a whole run: only the engine's share of the full run becomes smaller."""
    return full.total_ms / (full.total_ms - full.engine_ms * (1 - 1 / bound))


def compare_times(runs: Sequence[Run], full: Sequence[Run]) -> Speedup | None:
    """How much faster runs are than the full runs of the same rounds; None without a pair."""
    fulls = {run.round: run for run in full}
    ratios = sorted(fulls[run.round].total_ms / run.total_ms for run in pair_runs(runs, full))
    if not ratios:
        return None
    cut = _count_outside(len(ratios))
    return Speedup(median(ratios), ratios[0], ratios[-1], ratios[cut], ratios[-1 - cut], len(ratios))


def _count_outside(count: int) -> int:
    """How many of so many sorted values at each end lie outside of the 95 % interval of their median.

    It is that of the sign test, which holds for every distribution: the median is among the k smallest of n values
    with the probability that n coins show heads fewer than k times.
    """
    outside = 0
    while 2 * sum(comb(count, heads) for heads in range(outside + 2)) <= 0.05 * 2**count:
        outside += 1
    return outside


def mark(
    variant: Variant, runs: Sequence[Run], times: Times, speedup: Speedup | None, full: Times | None = None
) -> str:
    """The marks of a row: what makes its figures doubtful.

    No run does fewer engine calls than NFE. What a speed-up above N / NFE can come from, besides noise, is the time of
    the full run's solver loop, which a skipped run in program mode does not take.

    Args:
        variant: The variant.
        runs: Its timed runs.
        times: Their summary.
        speedup: To the full run.
        full: Times of the full run.
    """
    plan, asked = variant.setting.plan, variant.setting.backend
    marks, bound = "", _bound(plan, times, full, plan.speedup_bound)
    if speedup and variant.peer is None and speedup.median > bound:
        saved = full.total_ms / (full.total_ms - full.loop_ms) if full else 1.0
        marks += "!" if speedup.low > bound * saved else "="
    if times.total_ms_max - times.total_ms_min > SPREAD_LIMIT * times.total_ms:
        marks += "~"
    calls = None if variant.setting.policy else plan.nfe
    if any(run.nfe != (calls or run.nfe) or not run.nfe <= run.engine_calls <= 2 * run.nfe for run in runs):
        marks += "#"
    if any(run.backend != asked or run.eager_calls for run in runs):
        marks += "?"
    return marks


def mark_slower(runs: Sequence[Run], unquantized: Record | None) -> str:
    """The mark of a quantized engine that is slower than the float one: the 95 % interval of the rounds says so."""
    speedup = compare_times(runs, unquantized.runs) if unquantized else None
    return "<" if speedup and speedup.high < 1 else ""


def _bound(plan: Plan, times: Times, full: Times | None, in_calls: float) -> float:
    """The largest speed-up that the plan allows: in calls; with two engines in what their calls cost here."""
    return full.engine_ms / times.engine_ms if full and "Q" in plan.steps else in_calls


def _measure_each(record: Record, full: Record) -> tuple[float | None, ...]:
    """PSNR of every image, of a video that of its worst frame; None for an equal one."""
    found = []
    for image, reference in zip(record.images, full.images, strict=True):
        frames = zip(image, reference, strict=True) if image.ndim == 4 else [(image, reference)]
        found.append(min(measure_psnr(frame[None], other[None]) for frame, other in frames))
    return tuple(psnr if isfinite(psnr) else None for psnr in found)


def _measure(record: Record, reference: Record | None, metrics: tuple[Metric, ...]) -> Quality:
    if reference is None:
        return UNMEASURED
    few = len(reference.latents)  # the eager model may have made the first samples only
    return measure_quality(record.latents[:few], reference.latents, record.images[:few], reference.images, metrics)
