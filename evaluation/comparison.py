"""What a comparison found: rows, and the settings and the machine that they share."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from zeus_trt.evaluation.quality import UNMEASURED, Quality
from zeus_trt.evaluation.subject import EngineFacts

SPREAD_LIMIT = 0.1
MARKS = {
    "!": "faster than N / NFE by more than its spread, which is impossible: a wrong measurement",
    "=": "at the bound: above N / NFE by no more than its spread and the solver time it saves",
    "~": "its times spread by more than 10 % of their median",
    "#": "other full steps or engine calls than the plan has: a silent fallback",
    "?": "another backend or the uncompiled model ran: a silent fallback",
}
"""Mark of a row -> what it means."""


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
        """Whether the gain, of at most ``bound``, is larger than the spread of the rounds; a single round has none."""
        return self.high - self.low < abs(min(self.median, bound or math.inf) - 1)


@dataclass(frozen=True)
class Row:
    """One cell, measured.

    Args:
        label: What the cell is called.
        backend: The engine that was asked for.
        solver: The solver.
        num_steps: Solver steps.
        ratio: Of a uniform plan; None for others and for peers.
        plan: The step plan that ran.
        predictor: The rule that filled skipped steps.
        peer: The acceleration that was used instead of skipped steps.
        mode: ``program`` or ``step``.
        nfe: Full steps, counted as they ran; None for a cell that did not run, as all figures after it.
        nfe_equivalent: Work in calls of the whole denoiser: NFE, but for peers counted in floating-point operations.
        speedup_bound: Evaluations / NFE.
        run_bound: The same for the whole run, whose text encoders and decoder no plan shortens; from the times of the
            full run.
        times: How long it took.
        speedup: To the full run of the same engine, solver and number of steps.
        speedup_to_eager: To the full run of the eager model, where its rounds were timed too.
        host_mib: Peak resident memory of the process, largest of the rounds.
        device_mib: Peak memory of the GPU, largest of the rounds; None without one.
        to_full: Quality against the full run of the same engine: what skipping costs.
        to_eager: Quality against the full run of the eager model: what compiling and skipping cost together. On the
            first four samples where that run is no row itself.
        to_longest: Quality against the full run of the most steps, where there are several step counts.
        image_psnr_db: PSNR to the full run of every image, of a video that of its worst frame; None for an equal one.
        trajectory_errors: Relative distance of the latents to those of the full run, after every step.
        marks: Of ``MARKS``.
        note: Why it did not run; None if it did.
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
    times: Times | None = None
    speedup: Speedup | None = None
    speedup_to_eager: Speedup | None = None
    host_mib: float | None = None
    device_mib: float | None = None
    to_full: Quality = UNMEASURED
    to_eager: Quality = UNMEASURED
    to_longest: Quality = UNMEASURED
    image_psnr_db: tuple[float | None, ...] = ()
    trajectory_errors: tuple[float, ...] | None = None
    marks: str = ""
    note: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether it is the full run of its group."""
        return self.peer is None and "F" * len(self.plan) == self.plan

    @property
    def group(self) -> tuple[str, str, int]:
        """Rows of one group have one full run."""
        return self.backend, self.solver, self.num_steps

    def describe_images(self) -> tuple[float | None, float | None, float | None] | None:
        """The least, the middle and the largest PSNR of its images, None for equal ones; None where not measured."""
        if self.is_full or not self.image_psnr_db:
            return None
        ordered = sorted(math.inf if psnr is None else psnr for psnr in self.image_psnr_db)
        least, middle, most = (None if math.isinf(one) else one for one in (ordered[0], median(ordered), ordered[-1]))
        return least, middle, most

    def to_json(self) -> dict[str, Any]:
        """The row as flat JSON data."""
        data = asdict(self)
        times, speedup, to_eager = data.pop("times"), data.pop("speedup"), data.pop("speedup_to_eager")
        quality = data.pop("to_full")
        for prefix in ("eager", "longest"):
            quality |= {f"{prefix}_{key}": value for key, value in data.pop(f"to_{prefix}").items()}
        times = times or {field.name: None for field in fields(Times)}
        for name, value in (("speedup", speedup), ("speedup_to_eager", to_eager)):
            value = value or {}
            times[name] = value.get("median")
            times |= {f"{name}_{end}": value.get(end) for end in ("min", "max", "low", "high")}
        path = data.pop("trajectory_errors")
        return {**data, **times, **quality, "trajectory_errors": path}


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and what they share.

    Args:
        settings: Model, samples, guidance, rounds.
        machine: Processor, GPU, versions.
        engines: How each was opened.
        missing_metrics: Why a metric is not there, a line each.
        rows: In the order of the cells.
    """

    settings: Mapping[str, Any]
    machine: Mapping[str, str]
    engines: Mapping[str, EngineFacts]
    missing_metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        from zeus_trt.evaluation.verdict import judge

        return {
            "verdict": judge(self).sentence,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "engines": {name: asdict(facts) for name, facts in self.engines.items()},
            "missing_metrics": list(self.missing_metrics),
            "rows": [row.to_json() for row in self.rows],
        }

    def to_table(self) -> str:
        """The comparison as a table for the terminal."""
        from zeus_trt.evaluation.table import draw_table

        return draw_table(self)
