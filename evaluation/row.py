"""A row of a comparison: the figures of a variant, and how they are shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from statistics import median
from typing import Any

from zeus_trt.evaluation.pipeline_workload import EAGER
from zeus_trt.evaluation.quality import UNMEASURED, Quality
from zeus_trt.evaluation.table import Column

SPREAD_LIMIT = 0.1
MARKS = {
    "!": "faster than N / NFE by more than its spread, which is impossible: a wrong measurement",
    "=": "at the bound: above N / NFE by no more than its spread and the solver time it saves",
    "~": "its times spread by more than 10 % of their median",
    "#": "other full steps or engine calls than the plan has: a silent fallback",
    "?": "another backend or the uncompiled model ran: a silent fallback",
    "<": "a quantized engine that is slower than the float engine with the same plan: it has no use here",
}
"""Mark of a row -> its meaning."""

UNMEASURABLE = "not measurable here"
WHICH, SPEED, QUALITY = "which", "speed", "quality"


@dataclass(frozen=True)
class Times:
    """Times of a batch in milliseconds: medians over the rounds, with the least and the largest total.

    ``parts_ms`` has those of a pipeline's other parts by name: text encoders, decoder.
    """

    total_ms: float
    total_ms_min: float
    total_ms_max: float
    engine_ms: float
    loop_ms: float
    ms_per_image: float
    parts_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Speedup:
    """Full time / this time, both of one round, over the rounds.

    Args:
        median: Of the rounds.
        min: The least.
        max: The largest.
        low: The median is between this and ``high`` with 95 %; below six rounds they are the least and the largest.
        high: See ``low``.
        num_rounds: How many rounds; one has no spread.
    """

    median: float
    min: float
    max: float
    low: float
    high: float
    num_rounds: int

    def is_measurable(self, bound: float | None = None) -> bool:
        """Whether the gain, of at most ``bound``, is larger than the spread of the rounds, which is 0 for one round."""
        return self.high - self.low < abs(min(self.median, bound or math.inf) - 1)

    def describe(self, bound: float | None = None) -> str:
        """The median with its interval, or that it is not measurable."""
        if not self.is_measurable(bound):
            return UNMEASURABLE
        around = "1 round" if self.num_rounds == 1 else f"{self.low:.2f}-{self.high:.2f}"
        return f"{self.median:.2f} ({around})"


@dataclass(frozen=True)
class Row:
    """One variant, measured.

    Args:
        label: The variant's name.
        backend: The engine that was asked for.
        solver: The solver.
        num_steps: Solver steps.
        ratio: Of a uniform plan; None for others and for peers.
        plan: The step plan that ran.
        predictor: The rule that filled skipped steps.
        peer: The acceleration that was used, instead of skipped steps or below them.
        mode: ``program`` or ``step``.
        nfe: Full steps, counted as they ran; None for a variant that did not run, as all figures after it.
        nfe_equivalent: Work in calls of the whole denoiser: NFE, but for peers counted in floating-point operations.
        speedup_bound: Evaluations / NFE, for peers / NFE equivalent: a cache that skips what has few operations may be
            faster. With quantized steps the time in the engine of the full run over that here.
        run_bound: The same for the whole run, whose text encoders and decoder no plan shortens; from the times of the
            full run.
        host_mib: Peak resident memory of the process, largest of the rounds.
        device_mib: Peak memory of the GPU, largest of the rounds; None without one.
        image_psnr_db: PSNR to the full run of every image, of a video that of its worst frame; None for an equal one.
        marks: Of ``MARKS``.
        note: Why it did not run; None if it did.
        times: How long it took.
        speedup: To the full run of the same engine, solver and number of steps.
        speedup_to_eager: To the full run of the eager model, where its rounds were timed too.
        to_full: Quality against the full run of the same engine: what skipping costs.
        to_eager: Quality against the full run of the eager model: what compiling and skipping cost together. On the
            first four samples where that run is no row itself.
        to_longest: Quality against the full run of the most steps, where there are several step counts.
        trajectory_errors: Relative distance of the latents to those of the full run, after every step.
    """

    label: str
    backend: str
    solver: str
    num_steps: int
    ratio: int | None
    plan: str
    predictor: str
    peer: str | None
    mode: str | None = None
    nfe: int | None = None
    nfe_equivalent: float | None = None
    speedup_bound: float | None = None
    run_bound: float | None = None
    host_mib: float | None = None
    device_mib: float | None = None
    image_psnr_db: tuple[float | None, ...] = ()
    marks: str = ""
    note: str | None = None
    times: Times | None = None
    speedup: Speedup | None = None
    speedup_to_eager: Speedup | None = None
    to_full: Quality = UNMEASURED
    to_eager: Quality = UNMEASURED
    to_longest: Quality = UNMEASURED
    trajectory_errors: tuple[float, ...] | None = None

    @property
    def is_full(self) -> bool:
        """Whether it is the full run of its group."""
        return self.peer is None and "F" * len(self.plan) == self.plan

    @property
    def is_skipped(self) -> bool:
        """Whether it is a run with skipped steps, whose times were measured."""
        return self.peer is None and not self.is_full and self.times is not None

    @property
    def group(self) -> tuple[str, str, int]:
        """Rows of one group have one full run."""
        return self.backend, self.solver, self.num_steps

    def describe_images(self, unit: str = "") -> tuple[str, str, str] | None:
        """The least, the middle and the largest PSNR of its images; None where not measured."""
        if self.is_full or not self.image_psnr_db:
            return None
        ordered = sorted(math.inf if psnr is None else psnr for psnr in self.image_psnr_db)
        least, middle, most = (
            "equal" if math.isinf(one) else f"{one:.1f}{unit}" for one in (ordered[0], median(ordered), ordered[-1])
        )
        return least, middle, most

    def describe_speedup(self) -> str:
        """The speed-up with its interval, or that it is not measurable."""
        if self.speedup is None:
            return ""
        return "1" if self.is_full else self.speedup.describe(self.speedup_bound)

    def to_json(self) -> dict[str, Any]:
        """The row as flat JSON data."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "times":
                flat |= value or {part.name: None for part in fields(Times)}
            elif name.startswith("speedup") and name != "speedup_bound":
                flat[name] = value and value["median"]
                flat |= {f"{name}_{end}": value and value[end] for end in ("min", "max", "low", "high")}
            elif name.startswith("to_"):
                prefix = "" if name == "to_full" else name.removeprefix("to_") + "_"
                flat |= {prefix + metric: figure for metric, figure in _flatten(value).items()}
            else:
                flat[name] = value
        return flat


def _flatten(quality: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in quality.items() if name != "others"} | quality["others"]


def _show(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _show_times(style: str, row: Row) -> str:
    """The row's times in a format; empty for a variant that did not run."""
    return style.format(row.times) if row.times else ""


def _show_part(name: str, row: Row) -> str:
    return f"{row.times.parts_ms.get(name, 0.0):.0f}" if row.times else ""


def _show_other(name: str, row: Row) -> str:
    return _show(row.to_full.others.get(name), ".4g")


def _show_nfe(row: Row) -> str:
    if row.nfe_equivalent and row.nfe_equivalent != row.nfe:
        return f"{row.nfe_equivalent:.1f} eq."
    return "" if row.nfe is None else str(row.nfe)


def _show_psnr(row: Row, quality: Quality) -> str:
    if row.nfe is None or quality == UNMEASURED:
        return ""
    return "equal" if quality.psnr_db is None else f"{quality.psnr_db:.1f}"


def list_columns(rows: Sequence[Row]) -> list[Column]:
    """All columns of a comparison, with one for every other part of a pipeline."""
    parts = dict.fromkeys(name for row in rows if row.times for name in row.times.parts_ms)
    names = {name: {"vae": "decoder (vae)"}.get(name, name.replace("_", " ")) for name in parts}
    others = dict.fromkeys(name for row in rows for name in row.to_full.others)
    run_bound = Column("run bound", "x", lambda row: _show(row.run_bound, ".2f"), SPEED, 3)
    return [
        Column("", "", lambda row: row.label, WHICH),
        Column("backend", "", lambda row: row.backend, WHICH, optional=True),
        Column("solver", "", lambda row: row.solver, WHICH, optional=True),
        Column("steps", "", lambda row: str(row.num_steps), WHICH, optional=True),
        Column("predictor", "", lambda row: "" if row.is_full or row.peer else row.predictor, WHICH, optional=True),
        Column("NFE", "calls", _show_nfe, WHICH),
        Column("time", "ms/image", partial(_show_times, "{0.ms_per_image:.1f}"), SPEED, 2),
        Column("speed-up", "x (95 %)", Row.describe_speedup, SPEED),
        Column("bound", "x", lambda row: _show(row.speedup_bound, ".2f"), SPEED, 1),
        *([run_bound] if parts else []),
        Column("to eager", "x (95 %)", lambda row: "" if row.backend == EAGER or not row.speedup_to_eager
               else row.speedup_to_eager.describe(), SPEED, 4, optional=True),
        Column("total", "ms (min-max)",
               partial(_show_times, "{0.total_ms:.0f} ({0.total_ms_min:.0f}-{0.total_ms_max:.0f})"), SPEED, 11),
        Column("engine", "ms", partial(_show_times, "{0.engine_ms:.0f}"), SPEED, 7),
        Column("loop", "ms", partial(_show_times, "{0.loop_ms:.1f}"), SPEED, 8),
        *(Column(shown, "ms", partial(_show_part, name), SPEED, 5) for name, shown in names.items()),
        Column("memory", "MiB", lambda row: _show(row.host_mib, ".0f"), SPEED, 9),
        Column("GPU memory", "MiB", lambda row: _show(row.device_mib, ".0f"), SPEED, 6, optional=True),
        Column("PSNR", "dB", lambda row: _show_psnr(row, row.to_full), QUALITY),
        Column("PSNR of images", "dB, min/med/max", lambda row: " / ".join(row.describe_images() or ()), QUALITY, 12),
        Column("SSIM", "0-1", lambda row: _show(row.to_full.ssim, ".4f"), QUALITY, 4),
        Column("latents", "rel. error", lambda row: _show(row.to_full.latent_error, ".1e"), QUALITY, 10),
        Column("frames", "dB", lambda row: _show(row.to_full.temporal_psnr_db, ".1f"), QUALITY, 5, optional=True),
        Column("LPIPS", "0 = equal", lambda row: _show(row.to_full.lpips, ".4f"), QUALITY, 5, optional=True),
        Column("FID", "0 = equal", lambda row: _show(row.to_full.fid, ".2f"), QUALITY, 5, optional=True),
        *(Column(name, "", partial(_show_other, name), QUALITY) for name in others),
        Column("PSNR to eager", "dB", lambda row: "" if row.backend == EAGER else _show_psnr(row, row.to_eager),
               QUALITY, 5, optional=True),
        Column("PSNR to most steps", "dB", lambda row: _show_psnr(row, row.to_longest), QUALITY, 5, optional=True),
        Column("marks", "see below", lambda row: row.marks, SPEED, optional=True),
    ]  # fmt: skip
