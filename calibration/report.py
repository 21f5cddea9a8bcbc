"""The files of a comparison."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt.calibration.comparison import Comparison, Row
from zeus_trt.calibration.page import Figure, write_page
from zeus_trt.calibration.plots import name_rows, plot_plans, plot_speedup, plot_trajectories
from zeus_trt.calibration.table import write_csv
from zeus_trt.files import write_atomically
from zeus_trt.pictures import draw_differences, draw_grid

if TYPE_CHECKING:
    from PIL import Image

FILES = (
    "comparison.json", "grid.png", "plans.png", "report.html", "speedup.png", "table.csv", "trajectory.png"
)  # fmt: skip
_SHOWN = 16  # samples of a picture
_GAINS = (1, 2, 4, 8, 16, 32, 64)


def write_report(comparison: Comparison, images: Mapping[int, torch.Tensor], output: Path) -> None:
    """Writes ``FILES``.

    Args:
        comparison: What was found.
        images: Row number -> its samples, (batch, [frames,] channels, height, width), -1..1.
        output: A folder that is there.
    """
    names = name_rows(comparison)
    shown = {index: pixels[:_SHOWN] for index, pixels in images.items()}
    labels = {index: _label(comparison.rows[index], names[index]) for index in shown}
    plots = {
        "speedup.png": plot_speedup(comparison),
        "trajectory.png": plot_trajectories(comparison),
        "plans.png": plot_plans(comparison),
    }
    gain, pairs = _choose_gain(comparison, shown)
    figures = [
        Figure(names[index], _encode(draw_differences(shown[full], shown[index], gain)))
        for index, full in pairs.items()
    ]
    files = {
        **plots,
        "grid.png": _encode(draw_grid({labels[index]: pixels for index, pixels in shown.items()})),
        "table.csv": write_csv(comparison).encode(),
        "comparison.json": (json.dumps(comparison.to_json(), indent=2) + "\n").encode(),
        "report.html": write_page(comparison, list(plots.values()), figures, gain).encode(),
    }
    for name, content in files.items():
        with write_atomically(output / name) as path:
            path.write_bytes(content)


def _choose_gain(comparison: Comparison, shown: Mapping[int, torch.Tensor]) -> tuple[int, dict[int, int]]:
    """The largest gain at which one pixel in a hundred of the worst row is clipped; and row -> its full row."""
    rows = comparison.rows
    fulls = {row.group: index for index, row in enumerate(rows) if row.is_full and index in shown}
    pairs = {
        index: fulls[rows[index].group]
        for index in shown
        if rows[index].group in fulls and fulls[rows[index].group] != index
    }
    differences = [(shown[index] - shown[full]).abs().flatten() for index, full in pairs.items()]
    worst = max((_quantile(difference, 0.99) for difference in differences), default=0.0)
    return max((gain for gain in _GAINS if gain * worst <= 2), default=1), pairs


def _quantile(values: torch.Tensor, fraction: float) -> float:
    return float(values.kthvalue(max(int(fraction * len(values)), 1)).values)  # quantile() refuses large tensors


def _label(row: Row, name: str) -> str:
    if row.is_full:
        return f"{name}: {row.nfe} calls"
    quality = "equal" if row.to_full.psnr_db is None else f"{row.to_full.psnr_db:.1f} dB"
    speed = f", {row.speedup.median:.2f}x" if row.speedup else ""
    calls = f": {row.nfe} calls" if not row.peer else ""
    return f"{name}{calls}\n{quality}{speed}"


def _encode(picture: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
