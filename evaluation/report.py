"""The files of a comparison."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt.evaluation.comparison import Comparison, list_marks
from zeus_trt.evaluation.page import Figure, Scale, Tile, write_page
from zeus_trt.evaluation.plots import plot_plans, plot_speedup, plot_trajectories
from zeus_trt.evaluation.row import UNMEASURABLE, Row
from zeus_trt.files import write_atomically
from zeus_trt.pictures import draw_grid, draw_levels, list_colours, measure_levels, shrink, to_images

if TYPE_CHECKING:
    from PIL import Image

FILES = (
    "comparison.json", "grid.png", "plans.png", "report.html", "speedup.png", "table.csv", "trajectory.png"
)  # fmt: skip
_PLOTS = (
    "speed-up over PSNR",
    "error of the latents after every step",
    "what happens at each step",
)
_SHOWN = 16  # samples of a picture
_TOPS = (1, 2, 4, 8, 16, 32, 64, 128, 255)  # levels of the brightest colour of a difference, the first that fits
_CLIPPED = 0.001  # of the worst row's pixels may be brighter


def write_report(comparison: Comparison, images: Mapping[int, torch.Tensor], output: Path) -> None:
    """Writes ``FILES``.

    Args:
        comparison: The rows.
        images: Row number -> its samples, (batch, [frames,] channels, height, width), -1..1.
        output: A folder that exists.
    """
    rows, names = comparison.rows, comparison.names
    shown = {index: pixels[:_SHOWN] for index, pixels in images.items()}
    labels = {index: _label(rows[index], names[index]) for index in shown}
    plots = {
        "speedup.png": plot_speedup(comparison),
        "trajectory.png": plot_trajectories(comparison),
        "plans.png": plot_plans(comparison),
    }
    figures, scale = _compare_samples(comparison, shown)
    grid = draw_grid({labels[index]: pixels for index, pixels in shown.items()}, list_marks(rows))
    files = {
        **plots,
        "grid.png": _encode(grid),
        "table.csv": comparison.to_csv().encode(),
        "comparison.json": (json.dumps(comparison.to_json(), indent=2) + "\n").encode(),
        "report.html": write_page(comparison, dict(zip(_PLOTS, plots.values(), strict=True)), figures, scale).encode(),
    }
    for name, content in files.items():
        with write_atomically(output / name) as path:
            path.write_bytes(content)


def _compare_samples(comparison: Comparison, shown: Mapping[int, torch.Tensor]) -> tuple[list[Figure], Scale | None]:
    """The samples of every row beside those of its full run, and the scale of all differences."""
    rows = comparison.rows
    fulls = {row.group: index for index, row in enumerate(rows) if row.is_full and index in shown}
    pairs = {index: full for index in shown if (full := fulls.get(rows[index].group, index)) != index}
    if not pairs:
        return [], None
    levels = {index: measure_levels(shown[full], shown[index]) for index, full in pairs.items()}
    worst = max(_quantile(found.flatten(), 1 - _CLIPPED) for found in levels.values())
    top = next(top for top in _TOPS if worst <= top)
    figures = []
    for index, full in pairs.items():
        pictures = (
            [_encode(shrink(picture)) for picture in some]
            for some in (to_images(shown[full]), to_images(shown[index]), draw_levels(levels[index], top))
        )
        texts = [_say_db(psnr) for psnr in rows[index].image_psnr_db] or [""] * len(shown[index])
        tiles = [Tile(*parts) for parts in zip(*pictures, texts, strict=False)]
        side = max(shown[index].shape[-2:])
        figures.append(Figure(comparison.names[index], rows[index].label, _describe(rows[index]), side, tiles))
    return figures, Scale(list_colours(), top, max(float(found.max()) for found in levels.values()))


def _quantile(values: torch.Tensor, fraction: float) -> float:
    return float(values.kthvalue(max(int(fraction * len(values)), 1)).values)  # quantile() refuses large tensors


def _label(row: Row, name: str) -> str:
    return f"{name}: {row.nfe} calls\n{_describe(row)}" if not row.peer else f"{name}\n{_describe(row)}"


def _describe(row: Row) -> str:
    """Quality and speed of a row, with its marks."""
    if row.is_full:
        return row.marks
    speed = row.describe_speedup().split(" (")[0]
    speed = {"": "", UNMEASURABLE: f"speed {UNMEASURABLE}"}.get(speed, f"{speed}x")
    quality = _say_db(row.to_full.psnr_db) if row.image_psnr_db else ""
    return " ".join(part for part in (", ".join(part for part in (quality, speed) if part), row.marks) if part)


def _say_db(psnr_db: float | None) -> str:
    return "equal" if psnr_db is None else f"{psnr_db:.1f} dB"


def _encode(picture: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
