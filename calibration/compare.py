"""Skipped runs beside the full run: time, quality, memory."""

import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from zeus_trt.calibration.memory import peak_memory_mib, reset_peak_memory
from zeus_trt.calibration.quality import measure_psnr, measure_ssim
from zeus_trt.errors import ZeusError
from zeus_trt.files import write_atomically
from zeus_trt.machine import describe_machine
from zeus_trt.pictures import draw_grid
from zeus_trt.runtime import Result, Session


@dataclass(frozen=True)
class Row:
    """One ratio, measured.

    Args:
        ratio: Skipped steps after each full one.
        plan: The step plan as a string.
        mode: ``program`` or ``step``.
        nfe: Engine calls, counted at the engine.
        ms_per_image: Median over the rounds of trajectory time / number of images.
        speedup: Median over the rounds of full time / this time, both of the same round.
        speedup_min: Least speed-up of a round.
        speedup_max: Largest speed-up of a round.
        speedup_bound: Evaluations / NFE.
        psnr_db: To the full run; None where the images are equal to the bit.
        ssim: To the full run.
        peak_memory_mib: Peak resident memory of the process during a run.
    """

    ratio: int
    plan: str
    mode: str
    nfe: int
    ms_per_image: float
    speedup: float
    speedup_min: float
    speedup_max: float
    speedup_bound: float
    psnr_db: float | None
    ssim: float
    peak_memory_mib: float

    @property
    def above_bound(self) -> bool:
        """Whether the measured speed-up is impossible: the clock saw something else than this program."""
        return self.speedup > self.speedup_bound


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and the settings and the machine they share."""

    settings: dict[str, Any]
    machine: dict[str, str]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        return {**dataclasses.asdict(self), "rows": [dataclasses.asdict(row) for row in self.rows]}

    def to_table(self) -> str:
        """The comparison as a table for the terminal."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("ratio", "NFE", "ms/image", "speed-up", "(min-max)", "bound", "PSNR dB", "SSIM", "peak MiB"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                str(row.ratio),
                str(row.nfe),
                f"{row.ms_per_image:.1f}",
                f"{row.speedup:.2f}x" + ("!" if row.above_bound else ""),
                f"{row.speedup_min:.2f}-{row.speedup_max:.2f}",
                f"{row.speedup_bound:.2f}x",
                "equal" if row.psnr_db is None else f"{row.psnr_db:.1f}",
                f"{row.ssim:.4f}",
                f"{row.peak_memory_mib:.0f}",
            )
        text = io.StringIO()
        Console(file=text, width=100).print(table)
        if any(row.above_bound for row in self.rows):
            text.write(
                "! above evaluations / NFE, which no run can beat: a measuring error, the machine's speed drifted\n"
            )
        shared = self.settings
        text.write(f"{shared['batch']} images, {shared['rounds']} rounds, {shared['backend']} on {self.machine['cpu']}")
        return text.getvalue()


def compare_ratios(
    session: Session,
    conditioning: Mapping[str, torch.Tensor] | None = None,
    *,
    ratios: Sequence[int] = (0, 2, 3, 4),
    num_steps: int = 50,
    batch: int = 1,
    guidance_scale: float = 1.0,
    seed: int = 0,
    predictor: str = "zeus",
    mode: str = "auto",
    rounds: int = 3,
    output: Path | None = None,
    on_call: Callable[[], None] | None = None,
) -> Comparison:
    """Runs every ratio from the same noise, in turn, and measures it against the full run.

    The rounds go over all ratios one after the other, every second round backwards, so
    that a machine whose speed drifts favours none. The full run is always among them.

    Args:
        session: Engine and solver.
        conditioning: Constant inputs by name, each (batch, ...).
        ratios: Ratios to run; 0 is added where it is missing.
        num_steps: Solver steps.
        batch: Number of images, where there is no conditioning to tell it.
        guidance_scale: Classifier-free guidance; 1 turns it off.
        seed: Seed of the initial noise.
        predictor: The rule that fills skipped steps.
        mode: As in ``Session.generate``.
        rounds: Timed runs of each ratio.
        output: Folder for ``grid.png`` and ``comparison.json``; nothing is written without it.
        on_call: Called after every engine call.
    """
    ratios = (0, *dict.fromkeys(ratio for ratio in ratios if ratio != 0))
    plans = {ratio: session.plan(num_steps, ratio) for ratio in ratios}
    if output is not None:
        _make_folder(output)
    runs: dict[int, list[tuple[Result, float]]] = {ratio: [] for ratio in ratios}
    shared: dict[str, Any] = {"num_steps": num_steps, "guidance_scale": guidance_scale, "seed": seed, "batch": batch}
    settings = {**shared, "predictor": predictor, "mode": mode}
    next(session.sample(conditioning, plan=plans[0], **shared))  # warm-up: the engine's first call allocates
    for round_ in range(rounds):
        for ratio in ratios if round_ % 2 == 0 else ratios[::-1]:
            reset_peak_memory()
            result = session.generate(
                conditioning, plan=plans[ratio], predictor=predictor, mode=mode, on_call=on_call, **shared
            )
            runs[ratio].append((result, peak_memory_mib()))
    full = runs[0][0][0]
    settings |= {"batch": len(full.latents), "rounds": rounds, "backend": full.report.backend}
    rows = tuple(_measure(ratio, runs[ratio], runs[0]) for ratio in ratios)
    comparison = Comparison(settings, describe_machine(), rows)
    if output is not None:
        _write(comparison, {ratio: runs[ratio][0][0].latents for ratio in ratios}, output)
    return comparison


def _measure(ratio: int, runs: list[tuple[Result, float]], full_runs: list[tuple[Result, float]]) -> Row:
    result, full = runs[0][0], full_runs[0][0]
    seconds = [run.report.total_seconds for run, _ in runs]
    speedups = [full.report.total_seconds / s for (full, _), s in zip(full_runs, seconds, strict=True)]
    psnr = measure_psnr(result.latents, full.latents)
    return Row(
        ratio=ratio,
        plan=result.report.plan,
        mode=result.report.mode,
        nfe=result.report.nfe,
        ms_per_image=1000 * median(seconds) / len(result.latents),
        speedup=median(speedups),
        speedup_min=min(speedups),
        speedup_max=max(speedups),
        speedup_bound=result.report.speedup_bound,
        psnr_db=None if math.isinf(psnr) else psnr,
        ssim=measure_ssim(result.latents, full.latents),
        peak_memory_mib=max(peak for _, peak in runs),
    )


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZeusError(
            f"output: got {output}, which cannot be made ({error.strerror}); expected a writable folder. "
            "Choose another."
        ) from error


def _write(comparison: Comparison, latents: Mapping[int, torch.Tensor], output: Path) -> None:
    labels = {
        row.ratio: f"full: {row.nfe} calls" if row.ratio == 0
        else f"r = {row.ratio}: {row.nfe} calls\n{row.psnr_db or math.inf:.1f} dB, {row.speedup:.2f}x"
        for row in comparison.rows
    }  # fmt: skip
    with write_atomically(output / "grid.png") as path:
        draw_grid({labels[ratio]: images for ratio, images in latents.items()}).save(path, format="png")
    with write_atomically(output / "comparison.json") as path:
        path.write_text(json.dumps(comparison.to_json(), indent=2) + "\n", encoding="utf-8")
