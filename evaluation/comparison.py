"""A comparison: its rows, the settings and the machine that they share, and its tables."""

import csv
import io
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from zeus_trt.evaluation.row import MARKS, UNMEASURABLE, WHICH, Row, list_columns
from zeus_trt.evaluation.table import Column, Table


@dataclass(frozen=True)
class EngineFacts:
    """The facts of an engine.

    Args:
        identity: All that distinguishes it from others, as JSON data.
        load_seconds: How long opening took.
        build_seconds: How long its build took, if it has a record of that.
        problem: Why it could not be opened; None if it was.
    """

    identity: Mapping[str, Any] = field(default_factory=dict)
    load_seconds: float = 0.0
    build_seconds: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and what they share.

    Args:
        settings: Model, samples, guidance, rounds.
        machine: Processor, GPU, versions.
        engines: How each was opened.
        missing_metrics: Why a metric is not there, a line each.
        rows: In the order of the variants.
    """

    settings: Mapping[str, Any]
    machine: Mapping[str, str]
    engines: Mapping[str, EngineFacts]
    missing_metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    @cached_property
    def names(self) -> list[str]:
        """A name of each row that has all in which the rows differ."""
        rows = self.rows, [row for row in self.rows if not (row.is_full or row.peer)]
        varies = {
            name: len({getattr(row, name) for row in rows[name == "predictor"]}) > 1
            for name in ("backend", "solver", "num_steps", "predictor")
        }
        names = []
        for row in self.rows:
            parts = [row.label]
            if varies["predictor"] and not (row.is_full or row.peer):
                parts.append(row.predictor)
            if varies["num_steps"]:
                parts.append(f"{row.num_steps} steps")
            parts += [getattr(row, name) for name in ("solver", "backend") if varies[name]]
            names.append(", ".join(parts))
        return names

    @property
    def table(self) -> Table:
        """All columns, without those that were not measured or in which nothing varies."""
        columns = list_columns(self.rows)
        if "psnr" not in self.settings["metrics"]:
            columns = [column for column in columns if not column.name.startswith("PSNR")]
        return Table([column for column in columns if not column.optional or self._varies(column)], self.rows)

    @property
    def named_table(self) -> Table:
        """The same with all that distinguishes the rows in the first column."""
        names = dict(zip(map(id, self.rows), self.names, strict=True))
        others = [column for column in self.table.columns if column.part != WHICH or column.name == "NFE"]
        return Table([Column("", "", lambda row: names[id(row)], WHICH), *others], self.rows)

    def _varies(self, column: Column) -> bool:
        texts = {column.read(row) for row in self.rows} - {""}
        return len(texts) > 1 or (column.name == "marks" and bool(texts))

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

    def to_csv(self) -> str:
        """The rows as CSV: the fields of the JSON, without the lists."""
        rows = []
        for row in self.rows:
            data = row.to_json()
            parts = {f"{name}_ms": value for name, value in (data.pop("parts_ms") or {}).items()}
            rows.append({key: value for key, value in (data | parts).items() if not isinstance(value, list | tuple)})
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_table(self, width: int | None = None) -> str:
        """The comparison for the terminal, and its verdict.

        Args:
            width: Letters of a line, those of the terminal by default; columns that do not fit are left out and named.
        """
        from zeus_trt.evaluation.verdict import judge

        width = width or shutil.get_terminal_size().columns
        whole = self.table
        if (table := whole.fit(width)).width > width:
            whole = self.named_table
            table = whole.fit(width)
        notes = list_notes(self)
        if left_out := [column.name for column in whole.columns if column not in table.columns]:
            notes.append(f"in the report, not here: {', '.join(left_out)}")
        below = [line for note in notes for line in textwrap.wrap(note, width, subsequent_indent="  ")]
        verdict = textwrap.wrap(judge(self).sentence, width)
        return "\n".join([table.to_terminal(width), "", *verdict, "", *below])


def list_notes(comparison: Comparison) -> list[str]:
    """Lines below the table: which rows did not run and why, the marks, missing metrics, engines, and the machine."""
    rows, settings, machine = comparison.rows, comparison.settings, comparison.machine
    notes = [f"{row.label} ({row.backend}): {row.note}" for row in rows if row.note]
    notes += [*list_marks(rows), *comparison.missing_metrics]
    if not settings["has_eager_reference"]:
        notes.append("no eager reference: give the model folder with --model to see what compiling costs")
    elif settings["eager_samples"] < settings["num_images"]:
        notes.append(f"PSNR to eager: on the first {settings['eager_samples']} images")
    for name, facts in comparison.engines.items():
        built = "" if facts.build_seconds is None else f", built in {facts.build_seconds:.1f} s"
        notes.append(f"{name}: loaded in {facts.load_seconds:.2f} s{built}")
    place = machine["cpu"] if machine["gpu"] == "none" else f"{machine['gpu']}, {machine['cpu']}"
    timed = settings.get("timed_images", settings["num_images"])
    few = f" of the first {timed}" if timed < settings["num_images"] else ""
    notes.append(
        f"{settings['num_images']} images of {settings['model']}, {settings['rounds']} timed rounds{few}, on {place}"
    )
    return notes


def list_marks(rows: Sequence[Row]) -> list[str]:
    """The meaning of the marks of these rows, and of the words ``not measurable here``, a line each."""
    lines = [f"{mark} {meaning}" for mark, meaning in MARKS.items() if any(mark in row.marks for row in rows)]
    if any(row.describe_speedup() == UNMEASURABLE for row in rows):
        lines.append(f"{UNMEASURABLE}: the rounds differ by more than the gain")
    return lines


_PEER_HEADS = (
    "cache", "NFE eq.", "ms/image", "PSNR dB", "not slower", "ms/image", "PSNR dB", "no more work", "NFE", "PSNR dB"
)  # fmt: skip


def pair_peers(rows: Sequence[Row]) -> Table | None:
    """Each cache beside the best skipped run of its group that is not slower, and the best one of no more work.

    None without peers that ran, or without skipped runs of the same engine.
    """
    lines = []
    for peer in rows:
        skipped = [row for row in rows if row.group == peer.group and row.is_skipped]
        if peer.peer and peer.times and skipped:
            fast, light = (_find_best(peer, skipped, read) for read in (_read_ms, _read_nfe))
            lines.append([
                peer.label, f"{_read_nfe(peer):.1f}", f"{_read_ms(peer):.1f}", _show_psnr(peer),
                f"{fast.label}, {fast.predictor}" if fast else "none", f"{_read_ms(fast):.1f}" if fast else "",
                _show_psnr(fast), f"{light.label}, {light.predictor}" if light else "none",
                f"{_read_nfe(light):.0f}" if light else "", _show_psnr(light),
            ])  # fmt: skip
    return Table.of_texts(_PEER_HEADS, lines) if lines else None


def _find_best(peer: Row, skipped: Sequence[Row], read: Callable[[Row], float]) -> Row | None:
    allowed = [row for row in skipped if read(row) <= read(peer)]
    return max(allowed, key=lambda row: row.to_full.psnr_db or 0.0, default=None)


def _read_ms(row: Row) -> float:
    return row.times.ms_per_image if row.times else 0.0


def _read_nfe(row: Row) -> float:
    return row.nfe_equivalent or 0.0


def _show_psnr(row: Row | None) -> str:
    if row is None:
        return ""
    return "equal" if row.to_full.psnr_db is None else f"{row.to_full.psnr_db:.1f}"
