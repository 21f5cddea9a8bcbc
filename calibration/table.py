"""A comparison as a table: for the terminal, and as CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeus_trt.calibration.comparison import MARKS, Comparison, Row
from zeus_trt.calibration.pipeline_workload import EAGER
from zeus_trt.calibration.quality import UNMEASURED, Quality


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        name: Its head.
        read: What a row says there.
        optional: Leave it out where no two rows say different things.
    """

    name: str
    read: Callable[[Row], str]
    optional: bool = False


def list_columns(comparison: Comparison) -> list[Column]:
    """The columns of a comparison, without those in which nothing varies."""
    columns = [
        Column("", lambda row: row.label),
        Column("backend", lambda row: row.backend, optional=True),
        Column("solver", lambda row: row.solver, optional=True),
        Column("steps", lambda row: str(row.num_steps), optional=True),
        Column("predictor", lambda row: "" if row.is_full or row.peer else row.predictor, optional=True),
        Column("NFE", _say_nfe),
        Column("ms/image", lambda row: f"{row.times.ms_per_image:.1f}" if row.times else ""),
        Column("engine", lambda row: f"{row.times.engine_ms:.0f}" if row.times else ""),
        Column("loop", lambda row: f"{row.times.loop_ms:.1f}" if row.times else ""),
        Column("total ms", _say_total),
        Column("speed-up", _say_speedup),
        Column("bound", lambda row: f"{row.speedup_bound:.2f}x" if row.speedup_bound else ""),
        Column("to eager", _say_speedup_to_eager, optional=True),
        Column("PSNR dB", lambda row: _say_psnr(row, row.to_full)),
        Column("SSIM", lambda row: _say(row.to_full.ssim, ".4f")),
        Column("latents", lambda row: _say(row.to_full.latent_error, ".1e")),
        Column("frames dB", lambda row: _say(row.to_full.temporal_psnr_db, ".1f"), optional=True),
        Column("LPIPS", lambda row: _say(row.to_full.lpips, ".4f"), optional=True),
        Column("FID", lambda row: _say(row.to_full.fid, ".2f"), optional=True),
        Column("PSNR dB, eager", lambda row: "" if row.backend == EAGER else _say_psnr(row, row.to_eager), True),
        Column("PSNR dB, most steps", lambda row: _say_psnr(row, row.to_longest), optional=True),
        Column("MiB", lambda row: _say(row.host_mib, ".0f")),
        Column("GPU MiB", lambda row: _say(row.device_mib, ".0f"), optional=True),
        Column("marks", lambda row: row.marks, optional=True),
    ]
    rows = comparison.rows
    if "psnr" not in comparison.settings["metrics"]:
        columns = [column for column in columns if not column.name.startswith("PSNR")]
    return [column for column in columns if not column.optional or _says_more(column, rows)]


def _says_more(column: Column, rows: Sequence[Row]) -> bool:
    said = {column.read(row) for row in rows} - {""}
    return len(said) > 1 or (column.name == "marks" and bool(said))


def list_remarks(comparison: Comparison) -> list[str]:
    """Lines below the table: what did not run, what the marks mean, what could not be measured, and on what it ran."""
    rows, settings = comparison.rows, comparison.settings
    remarks = [f"{row.label} ({row.backend}): {row.note}" for row in rows if row.note]
    remarks += [f"{mark} {meaning}" for mark, meaning in MARKS.items() if any(mark in row.marks for row in rows)]
    remarks += comparison.missing_metrics
    if not settings["has_eager_reference"]:
        remarks.append("no eager reference: give the model folder with --model to see what compiling costs")
    elif settings["eager_samples"] < settings["num_images"]:
        remarks.append(f"PSNR dB, eager: on the first {settings['eager_samples']} images")
    for name, facts in comparison.engines.items():
        built = "" if facts.build_seconds is None else f", built in {facts.build_seconds:.1f} s"
        remarks.append(f"{name}: loaded in {facts.load_seconds:.2f} s{built}")
    machine = comparison.machine
    place = machine["cpu"] if machine["gpu"] == "none" else f"{machine['gpu']}, {machine['cpu']}"
    remarks.append(f"{settings['num_images']} images of {settings['model']}, {settings['rounds']} rounds, on {place}")
    return remarks


def draw_table(comparison: Comparison) -> str:
    """The comparison for the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    columns = list_columns(comparison)
    for column in columns:
        table.add_column(column.name, justify="right" if column.name else "left", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*(column.read(row) for column in columns))
    text = io.StringIO()
    Console(file=text, width=240).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join([*lines, *list_remarks(comparison)])


def write_csv(comparison: Comparison) -> str:
    """The rows as CSV: the fields of the JSON, but the error along the trajectory."""
    rows = [
        {key: value for key, value in row.to_json().items() if key != "trajectory_errors"} for row in comparison.rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _say(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _say_nfe(row: Row) -> str:
    if row.peer and row.nfe_equivalent:
        return f"{row.nfe_equivalent:.1f} eq."
    return "" if row.nfe is None else str(row.nfe)


def _say_total(row: Row) -> str:
    times = row.times
    return f"{times.total_ms:.0f} ({times.total_ms_min:.0f}-{times.total_ms_max:.0f})" if times else ""


def _say_speedup(row: Row) -> str:
    speedup = row.speedup
    return f"{speedup.median:.2f}x ({speedup.min:.2f}-{speedup.max:.2f})" if speedup else ""


def _say_speedup_to_eager(row: Row) -> str:
    return f"{row.speedup_to_eager.median:.2f}x" if row.speedup_to_eager and row.backend != EAGER else ""


def _say_psnr(row: Row, quality: Quality) -> str:
    if row.nfe is None or quality == UNMEASURED:
        return ""
    return "equal" if quality.psnr_db is None else f"{quality.psnr_db:.1f}"
