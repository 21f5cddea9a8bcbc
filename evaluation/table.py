"""A comparison as a table: for the terminal, as Markdown, and as CSV."""

import csv
import io
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from zeus_trt.evaluation.comparison import MARKS, Comparison, Row, Speedup
from zeus_trt.evaluation.pipeline_workload import EAGER
from zeus_trt.evaluation.plots import name_rows
from zeus_trt.evaluation.quality import UNMEASURED, Quality
from zeus_trt.evaluation.verdict import judge

UNMEASURABLE = "not measurable here"
WHICH, SPEED, QUALITY = "which", "speed", "quality"
_NAME_LETTERS = 24


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        name: Its head.
        unit: Below it.
        read: What a row says there.
        part: ``which`` run, its ``speed``, or its ``quality``.
        rank: Where the width is short, the highest are left out first; 0 never is.
        optional: Leave it out where no two rows say different things.
    """

    name: str
    unit: str
    read: Callable[[Row], str]
    part: str = SPEED
    rank: int = 0
    optional: bool = False

    @property
    def head(self) -> str:
        """Name and unit in one line."""
        return ", ".join(part for part in (self.name, self.unit) if part)


def list_columns(comparison: Comparison) -> list[Column]:
    """The columns of a comparison, without those in which nothing varies."""
    rows = comparison.rows
    columns = [*_list_which(), *_list_speed(rows), *_list_quality()]
    columns.append(Column("marks", "see below", lambda row: row.marks, optional=True))
    if "psnr" not in comparison.settings["metrics"]:
        columns = [column for column in columns if not column.name.startswith("PSNR")]
    return [column for column in columns if not column.optional or _says_more(column, rows)]


def merge_names(comparison: Comparison) -> list[Column]:
    """The columns, all that distinguishes the runs in the first one."""
    names = {id(row): name for row, name in zip(comparison.rows, name_rows(comparison), strict=True)}
    others = [column for column in list_columns(comparison) if column.part != WHICH or column.name == "NFE"]
    return [Column("", "", lambda row: names[id(row)], WHICH), *others]


def _list_which() -> list[Column]:
    return [
        Column("", "", lambda row: row.label, WHICH),
        Column("backend", "", lambda row: row.backend, WHICH, optional=True),
        Column("solver", "", lambda row: row.solver, WHICH, optional=True),
        Column("steps", "", lambda row: str(row.num_steps), WHICH, optional=True),
        Column("predictor", "", lambda row: "" if row.is_full or row.peer else row.predictor, WHICH, optional=True),
        Column("NFE", "calls", _say_nfe, WHICH),
    ]


def _list_speed(rows: Sequence[Row]) -> list[Column]:
    parts = dict.fromkeys(name for row in rows if row.times for name in row.times.parts_ms)
    return [
        Column("time", "ms/image", lambda row: f"{row.times.ms_per_image:.1f}" if row.times else "", rank=2),
        Column("speed-up", "x (95 %)", say_speedup),
        Column("bound", "x", lambda row: _say(row.speedup_bound, ".2f"), rank=1),
        *([Column("run bound", "x", lambda row: _say(row.run_bound, ".2f"), rank=3)] if parts else []),
        Column("to eager", "x (95 %)", _say_speedup_to_eager, rank=4, optional=True),
        Column("total", "ms (min-max)", _say_total, rank=11),
        Column("engine", "ms", lambda row: f"{row.times.engine_ms:.0f}" if row.times else "", rank=7),
        Column("loop", "ms", lambda row: f"{row.times.loop_ms:.1f}" if row.times else "", rank=8),
        *(Column(_name_part(name), "ms", partial(_say_part, name), rank=5) for name in parts),
        Column("memory", "MiB", lambda row: _say(row.host_mib, ".0f"), rank=9),
        Column("GPU memory", "MiB", lambda row: _say(row.device_mib, ".0f"), rank=6, optional=True),
    ]


def _list_quality() -> list[Column]:
    return [
        Column("PSNR", "dB", lambda row: _say_psnr(row, row.to_full), QUALITY),
        Column("PSNR of images", "dB, min/med/max", _say_range, QUALITY, 12),
        Column("SSIM", "0-1", lambda row: _say(row.to_full.ssim, ".4f"), QUALITY, 4),
        Column("latents", "rel. error", lambda row: _say(row.to_full.latent_error, ".1e"), QUALITY, 10),
        Column("frames", "dB", lambda row: _say(row.to_full.temporal_psnr_db, ".1f"), QUALITY, 5, optional=True),
        Column("LPIPS", "0 = equal", lambda row: _say(row.to_full.lpips, ".4f"), QUALITY, 5, optional=True),
        Column("FID", "0 = equal", lambda row: _say(row.to_full.fid, ".2f"), QUALITY, 5, optional=True),
        Column("PSNR to eager", "dB", lambda row: "" if row.backend == EAGER else _say_psnr(row, row.to_eager),
               QUALITY, 5, optional=True),
        Column("PSNR to most steps", "dB", lambda row: _say_psnr(row, row.to_longest), QUALITY, 5, optional=True),
    ]  # fmt: skip


def _says_more(column: Column, rows: Sequence[Row]) -> bool:
    said = {column.read(row) for row in rows} - {""}
    return len(said) > 1 or (column.name == "marks" and bool(said))


def list_remarks(comparison: Comparison) -> list[str]:
    """Lines below the table: what did not run, what the marks mean, what could not be measured, and on what it ran."""
    rows, settings = comparison.rows, comparison.settings
    remarks = [f"{row.label} ({row.backend}): {row.note}" for row in rows if row.note]
    remarks += list_marks(rows)
    remarks += comparison.missing_metrics
    if not settings["has_eager_reference"]:
        remarks.append("no eager reference: give the model folder with --model to see what compiling costs")
    elif settings["eager_samples"] < settings["num_images"]:
        remarks.append(f"PSNR to eager: on the first {settings['eager_samples']} images")
    for name, facts in comparison.engines.items():
        built = "" if facts.build_seconds is None else f", built in {facts.build_seconds:.1f} s"
        remarks.append(f"{name}: loaded in {facts.load_seconds:.2f} s{built}")
    machine = comparison.machine
    place = machine["cpu"] if machine["gpu"] == "none" else f"{machine['gpu']}, {machine['cpu']}"
    timed = settings.get("timed_images", settings["num_images"])
    few = f" of the first {timed}" if timed < settings["num_images"] else ""
    remarks.append(
        f"{settings['num_images']} images of {settings['model']}, {settings['rounds']} timed rounds{few}, on {place}"
    )
    return remarks


def list_marks(rows: Sequence[Row]) -> list[str]:
    """What the marks of these rows mean, and the words ``not measurable here``, a line each."""
    lines = [f"{mark} {meaning}" for mark, meaning in MARKS.items() if any(mark in row.marks for row in rows)]
    if any(say_speedup(row) == UNMEASURABLE for row in rows):
        lines.append(f"{UNMEASURABLE}: the rounds differ by more than the gain")
    return lines


def draw_table(comparison: Comparison, width: int | None = None) -> str:
    """The comparison for the terminal, and its verdict.

    Args:
        comparison: What was found.
        width: Characters of a line, those of the terminal by default; columns that do not fit are left out and named.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = width or shutil.get_terminal_size().columns
    columns, left_out = _fit(list_columns(comparison), comparison.rows, width)
    if _add_widths(columns, comparison.rows) > width:
        columns, left_out = _fit(merge_names(comparison), comparison.rows, width)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(f"{column.name}\n{column.unit}", justify="right" if column.name else "left", overflow="fold",
                         no_wrap=bool(column.name))  # fmt: skip
    for row in comparison.rows:
        table.add_row(*(column.read(row) for column in columns))
    text = io.StringIO()
    Console(file=text, width=width, markup=False, emoji=False, highlight=False).print(table)
    remarks = list_remarks(comparison)
    if left_out:
        remarks.append(f"in the report, not here: {', '.join(column.name for column in left_out)}")
    below = [line for remark in remarks for line in textwrap.wrap(remark, width, subsequent_indent="  ")]
    verdict = textwrap.wrap(judge(comparison).sentence, width)
    return "\n".join([*(line.rstrip() for line in text.getvalue().splitlines()), "", *verdict, "", *below])


def _fit(columns: list[Column], rows: Sequence[Row], width: int) -> tuple[list[Column], list[Column]]:
    """The columns that fit into the width, and those that are left out."""
    kept = list(columns)
    while _add_widths(kept, rows) > width:
        last = max(kept, key=lambda column: column.rank)
        if last.rank == 0:
            break
        kept.remove(last)
    return kept, [column for column in columns if column not in kept]


def _add_widths(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Letters of a line, two between columns; longer names of runs than ``_NAME_LETTERS`` are folded."""
    texts = [(column.name, column.unit, *(column.read(row) for row in rows)) for column in columns]
    widths = [max(map(len, column)) for column in texts]
    return sum(widths) - max(widths[0] - _NAME_LETTERS, 0) + 2 * len(widths) - 2


def write_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def write_csv(comparison: Comparison) -> str:
    """The rows as CSV: the fields of the JSON, but the error along the trajectory and the PSNR of every image."""
    rows = []
    for row in comparison.rows:
        data = row.to_json()
        parts = {f"{name}_ms": value for name, value in (data.pop("parts_ms") or {}).items()}
        rows.append({key: value for key, value in (data | parts).items() if not isinstance(value, list | tuple)})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def say_speedup(row: Row) -> str:
    """A row's speed-up with its interval, or that it is not measurable."""
    return "1" if row.is_full and row.speedup else _say_factor(row.speedup, row.speedup_bound)


def _say_factor(speedup: Speedup | None, bound: float | None = None) -> str:
    if speedup is None:
        return ""
    if not speedup.is_measurable(bound):
        return UNMEASURABLE
    around = "1 round" if speedup.num_rounds == 1 else f"{speedup.low:.2f}-{speedup.high:.2f}"
    return f"{speedup.median:.2f} ({around})"


def _say_speedup_to_eager(row: Row) -> str:
    return "" if row.backend == EAGER else _say_factor(row.speedup_to_eager)


def _say(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _say_nfe(row: Row) -> str:
    if row.peer and row.nfe_equivalent:
        return f"{row.nfe_equivalent:.1f} eq."
    return "" if row.nfe is None else str(row.nfe)


def _say_total(row: Row) -> str:
    times = row.times
    return f"{times.total_ms:.0f} ({times.total_ms_min:.0f}-{times.total_ms_max:.0f})" if times else ""


def _name_part(name: str) -> str:
    return {"vae": "decoder (vae)"}.get(name, name.replace("_", " "))


def _say_part(name: str, row: Row) -> str:
    return f"{row.times.parts_ms.get(name, 0.0):.0f}" if row.times else ""


def _say_range(row: Row) -> str:
    found = row.describe_images()
    return "" if found is None else " / ".join("equal" if psnr is None else f"{psnr:.1f}" for psnr in found)


def _say_psnr(row: Row, quality: Quality) -> str:
    if row.nfe is None or quality == UNMEASURED:
        return ""
    return "equal" if quality.psnr_db is None else f"{quality.psnr_db:.1f}"
