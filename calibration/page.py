"""A comparison as one web page that needs nothing else: no network, no scripts, readable on a phone."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from zeus_trt.calibration.comparison import Comparison
from zeus_trt.calibration.peer_table import pair_peers
from zeus_trt.calibration.table import list_columns, list_remarks

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
img { max-width: 100%; height: auto; display: block; image-rendering: pixelated; }
img.plot { image-rendering: auto; background: #fff; }
ul { padding-left: 1.2rem; font-size: .9rem; }
li, h1, h3 { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Figure:
    """A picture and what is written above it."""

    title: str
    png: bytes


def write_page(comparison: Comparison, plots: Sequence[bytes], figures: Sequence[Figure], gain: int) -> str:
    """The page as HTML text.

    Args:
        comparison: What was found.
        plots: PNGs.
        figures: Per row its samples: full, this row, and the difference.
        gain: What the differences are multiplied with.
    """
    settings = comparison.settings
    title = f"{settings['model']}: full and skipped runs compared"
    columns = list_columns(comparison)
    body = [
        f"<h1>{escape(title)}</h1>",
        _table(
            [column.name for column in columns], [[column.read(row) for column in columns] for row in comparison.rows]
        ),
        _list(list_remarks(comparison)),
    ]
    if pairs := pair_peers(comparison.rows):
        body += ["<h2>Caches beside the best skipped runs that are not slower, or do no more work</h2>", _table(*pairs)]
    if plots:
        body.append("<h2>Speed, error and plans</h2>")
        body += [_image(plot, "plot", "plot") for plot in plots]
    if figures:
        body.append(
            f"<h2>Samples</h2><p>Above the full run, below it the same seeds, then the difference x {gain}.</p>"
        )
        body += [f"<h3>{escape(figure.title)}</h3>{_image(figure.png, 'grid', figure.title)}" for figure in figures]
    body += ["<h2>How it was measured</h2>", _list([*_describe(settings), *_describe(comparison.machine)])]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _image(png: bytes, kind: str, text: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<img class="{kind}" alt="{escape(text, quote=True)}" src="data:image/png;base64,{data}">'


def _describe(data: object) -> list[str]:
    return [f"{name}: {value}" for name, value in dict(data).items()]  # type: ignore[call-overload]
