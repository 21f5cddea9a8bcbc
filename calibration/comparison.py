"""What a comparison found: rows, and the settings and the machine that they share."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from zeus_trt.calibration.quality import UNMEASURED, Quality
from zeus_trt.calibration.subject import EngineFacts

SPREAD_LIMIT = 0.1
MARKS = {
    "!": "faster than N / NFE, which no run can be: a measuring error, the machine's speed drifted",
    "~": "the times of this row spread by more than 10 % of their median",
    "#": "full steps were not as many as the plan says, or the engine was not called for each: a silent fallback",
    "?": "the engine says that it is another backend, or the uncompiled model ran: a silent fallback",
}
"""Mark of a row -> what it means."""


@dataclass(frozen=True)
class Times:
    """Times of a batch in milliseconds: medians over the rounds, with the least and the largest total."""

    total_ms: float
    total_ms_min: float
    total_ms_max: float
    engine_ms: float
    loop_ms: float
    ms_per_image: float


@dataclass(frozen=True)
class Speedup:
    """Median over the rounds of full time / this time, both of the same round, with the least and the largest."""

    median: float
    min: float
    max: float


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
        times: How long it took.
        speedup: To the full run of the same engine, solver and number of steps.
        speedup_to_eager: To the full run of the eager model, where its rounds were timed too.
        host_mib: Peak resident memory of the process, largest of the rounds.
        device_mib: Peak memory of the GPU, largest of the rounds; None without one.
        to_full: Quality against the full run of the same engine: what skipping costs.
        to_eager: Quality against the full run of the eager model: what compiling and skipping cost together. On the
            first four samples where that run is no row itself.
        to_longest: Quality against the full run of the most steps, where there are several step counts.
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
    times: Times | None = None
    speedup: Speedup | None = None
    speedup_to_eager: Speedup | None = None
    host_mib: float | None = None
    device_mib: float | None = None
    to_full: Quality = UNMEASURED
    to_eager: Quality = UNMEASURED
    to_longest: Quality = UNMEASURED
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
            times |= {name: value.get("median"), f"{name}_min": value.get("min"), f"{name}_max": value.get("max")}
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
        return {
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "engines": {name: asdict(facts) for name, facts in self.engines.items()},
            "missing_metrics": list(self.missing_metrics),
            "rows": [row.to_json() for row in self.rows],
        }

    def to_table(self) -> str:
        """The comparison as a table for the terminal."""
        from zeus_trt.calibration.table import draw_table

        return draw_table(self)
