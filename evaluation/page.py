"""A comparison as one web page that needs nothing else: no network, and a script only for its sliders."""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import inf
from typing import NamedTuple

from zeus_trt.evaluation.comparison import Comparison, list_notes, pair_peers
from zeus_trt.evaluation.row import QUALITY, SPEED, WHICH, Row
from zeus_trt.evaluation.table import Table
from zeus_trt.evaluation.verdict import RULE, judge


class Tile(NamedTuple):
    """One sample: PNGs of the full run, of the skipped run and of their difference, and the text below."""

    full: bytes
    skipped: bytes
    error: bytes
    text: str


class Figure(NamedTuple):
    """The samples of one row: its name, a short label, its figures, the larger side of a picture in pixels, tiles."""

    title: str
    label: str
    text: str
    side: int
    tiles: Sequence[Tile]


class Scale(NamedTuple):
    """The colours of the differences, the levels of 255 of the last one, and the largest difference in levels."""

    colours: Sequence[str]
    top: int
    largest: float


def write_page(
    comparison: Comparison, plots: Mapping[str, bytes], figures: Sequence[Figure], scale: Scale | None
) -> str:
    """The page as HTML text.

    Args:
        comparison: The rows.
        plots: PNGs by their titles.
        figures: The samples of every row that has a full run.
        scale: Of the differences in ``figures``.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["png"] = _embed
    template = environment.from_string(files("zeus_trt.evaluation").joinpath("page.html").read_text(encoding="utf-8"))
    verdict, peers = judge(comparison), pair_peers(comparison.rows)
    return template.render(
        model=comparison.settings["model"],
        verdict=verdict,
        stats=[] if verdict.row is None else _list_stats(comparison.rows[verdict.row]),
        rule=RULE,
        figures=figures,
        scale=scale,
        speed=_choose(comparison, SPEED).to_html(verdict.row),
        quality=_choose(comparison, QUALITY).to_html(verdict.row),
        share=_explain_bound(comparison),
        notes=list_notes(comparison),
        peers=peers.to_html() if peers else None,
        plots=plots,
        command=comparison.settings.get("command"),
        facts=_list_facts(comparison),
    )


def _choose(comparison: Comparison, part: str) -> Table:
    table = comparison.named_table
    return Table([column for column in table.columns if column.part in (WHICH, part)], table.rows)


def _list_stats(row: Row) -> list[tuple[str, str]]:
    """The figures behind the verdict, each with its meaning."""
    stats = []
    if speedup := row.speedup:
        spread = f"{speedup.low:.2f} to {speedup.high:.2f} in {speedup.num_rounds} rounds"
        spread = spread if speedup.num_rounds > 1 else "one round"
        factor = f"{speedup.median:.2f}x" if speedup.is_measurable(row.speedup_bound) else "?"
        if "=" in row.marks:
            factor, spread = f"≥ {min(speedup.low, row.speedup_bound or inf):.2f}x", f"{spread}, the bound among them"
        stats.append((factor, f"speed-up: {spread}"))
    if row.speedup_bound:
        stats.append((f"{row.speedup_bound:.2f}x", "bound of the speed-up, N / NFE"))
    stats.append((f"{row.nfe} of {len(row.plan)}", "denoiser calls"))
    if found := row.describe_images(" dB"):
        least, middle, most = found
        stats.append((middle, f"PSNR of the middle image, {least} to {most}"))
    return stats


def _explain_bound(comparison: Comparison) -> str | None:
    """Why a pipeline's whole run gains less than the bound; None for a bundle, which has no other parts."""
    full = next((row for row in comparison.rows if row.is_full and row.times and row.times.parts_ms), None)
    if full is None or full.times is None:
        return None
    times = full.times
    named = ", ".join(f"{name.replace('_', ' ')} {part:.0f} ms" for name, part in times.parts_ms.items())
    rest = times.total_ms - times.engine_ms
    return (
        f"Of the {times.total_ms:.0f} ms of a full run {rest:.0f} ms ({rest / times.total_ms:.0%}) are outside of the "
        f"denoiser, and no plan makes them shorter: {named}, and the loop. Hence the run bound beside N / NFE."
    )


def _list_facts(comparison: Comparison) -> list[tuple[str, str]]:
    facts = {**comparison.settings, **comparison.machine}
    hidden = ("command", "has_eager_reference", "eager_samples")
    return [
        (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in facts.items()
        if value is not None and name not in hidden
    ]


def _embed(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
