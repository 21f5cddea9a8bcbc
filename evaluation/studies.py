"""The paper's own studies, each a comparison and a verdict on what the paper claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.cells import make_cells
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.comparison import Comparison, Row
from zeus_trt.evaluation.table import list_columns, write_markdown
from zeus_trt.zeus_graph import fold

_COLLAPSED_DB = 15.0  # below it nothing of the full run's picture is left to recognise
_HIGH_RATIO = 4
_MEMORY_TOLERANCE = 0.05
_SHOWN = ("", "solver", "steps", "predictor", "NFE", "PSNR", "SSIM", "latents", "PSNR to most steps")


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, or a question of ours, and what was measured.

    Args:
        claim: In words.
        measured: What the rows say.
        agrees: None where there is no claim to agree with.
    """

    claim: str
    measured: str
    agrees: bool | None


@dataclass(frozen=True)
class Study:
    """One question.

    Args:
        name: On the command line.
        title: The question.
        grid: Arguments of ``make_cells``.
        judge: Reads the findings off the rows; ``Outcome.latents`` has the size of the state.
    """

    name: str
    title: str
    grid: Mapping[str, Any]
    judge: Callable[["Comparison", Mapping[str, int]], list[Finding]]


@dataclass(frozen=True)
class Outcome:
    """A study of one model.

    Args:
        study: Which.
        comparison: All rows.
        findings: Claims beside what was measured.
        state: Row label -> latents that a skipped run keeps, where it runs as a program.
    """

    study: Study
    comparison: Comparison
    findings: list[Finding]
    state: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return {
            "study": self.study.name,
            "findings": [vars(finding) for finding in self.findings],
            "state_latents": dict(self.state),
            "comparison": self.comparison.to_json(),
        }

    def to_markdown(self) -> str:
        """The outcome as two tables."""
        columns = [column for column in list_columns(self.comparison) if column.name in _SHOWN]
        lines = [f"### {self.study.title}: {self.comparison.settings['model']}", ""]
        cells = [[column.read(row) or "-" for column in columns] for row in self.comparison.rows]
        lines += write_markdown([column.head or "run" for column in columns], cells)
        words = {True: "yes", False: "no", None: "-"}
        lines += ["", *write_markdown(["the paper's claim, or our question", "measured", "agrees"],
                                       [[f.claim, f.measured, words[f.agrees]] for f in self.findings])]  # fmt: skip
        return "\n".join(lines) + "\n"


def run_study(
    name: str,
    path: str | Path,
    output: Path,
    *,
    num_images: int = 8,
    rounds: int = 1,
    guidance_scale: float | None = None,
    seed: int = 0,
    backends: Sequence[str] = ("onnxruntime",),
    on_run: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs a study on one model, and writes its report.

    Args:
        name: One of ``STUDIES``.
        path: A bundle or a model folder.
        output: Folder of the model's bundle and of the report, which goes to a folder of the study's name in it.
        num_images: As in ``compare``, and so on.
        guidance_scale: As in ``open_subject``, and so on.

    Raises:
        ZeusError: An unknown study, and as ``open_subject`` and ``compare``.
    """
    if name not in STUDIES:
        raise ZeusError(f"study: got {name!r}; expected one of {', '.join(STUDIES)}. Choose one of these.")
    from zeus_trt.comparing import open_compared

    study = STUDIES[name]
    subject = open_compared(path, output, backends=backends, guidance_scale=guidance_scale, seed=seed)
    cells = make_cells(subject.workload, backends=subject.asked, **study.grid)
    comparison = compare(
        subject, cells, num_images=num_images, rounds=rounds, output=output / name, reference=False,
        trajectories=False, on_run=on_run,
    )  # fmt: skip
    state = {
        cell.label: fold(
            subject.workload.program(cell.setting.num_steps, cell.setting.solver), cell.setting.plan
        ).num_latents
        for cell in cells
        if not cell.is_full and cell.setting.predictor == "zeus"
    }  # fmt: skip
    return Outcome(study, comparison, study.judge(comparison, state), state)


def find_psnr(rows: Sequence[Row], **wanted: Any) -> dict[int, float]:
    """PSNR by ratio of the rows whose fields are as wanted; infinity where the images are equal."""
    return {
        row.ratio: float("inf") if row.to_full.psnr_db is None else row.to_full.psnr_db
        for row in rows
        if row.ratio and row.nfe and all(getattr(row, name) == value for name, value in wanted.items())
    }


def _compare_rules(rows: Sequence[Row], better: str, worse: str) -> tuple[str, list[float]]:
    high, low = find_psnr(rows, predictor=better), find_psnr(rows, predictor=worse)
    gains = {ratio: high[ratio] - low[ratio] for ratio in high if ratio in low}
    said = ", ".join(f"r = {ratio}: {gain:+.1f}" for ratio, gain in gains.items())
    return f"{better} over {worse}, dB: {said}", list(gains.values())


def _judge_order(comparison: Comparison, _: Mapping[str, int]) -> list[Finding]:
    rows = comparison.rows
    second, gains = _compare_rules(rows, "zeus", "reuse")
    third, more = _compare_rules(rows, "lagrange-3@index", "zeus")
    plain, _plain = _compare_rules(rows, "lagrange-3@index", "lagrange-2@index")
    return [
        Finding("a second-order predictor is better than reuse", second, all(gain > 0 for gain in gains)),
        Finding("a third order does not help", f"{third}; {plain}", all(gain <= 0 for gain in more)),
    ]


def _judge_interleaving(comparison: Comparison, _: Mapping[str, int]) -> list[Finding]:
    rows = comparison.rows
    reuse, gains = _compare_rules(rows, "zeus", "reuse")
    chained = find_psnr(rows, predictor="extrapolate")
    high = {ratio: psnr for ratio, psnr in chained.items() if ratio >= _HIGH_RATIO}
    said = ", ".join(f"r = {ratio}: {psnr:.1f}" for ratio, psnr in chained.items())
    return [
        Finding("reuse-only is worse than interleaved", reuse, all(gain > 0 for gain in gains)),
        Finding(
            f"predictor-only collapses at high r (here: below {_COLLAPSED_DB:.0f} dB from r = {_HIGH_RATIO} on)",
            f"PSNR, dB: {said}",
            all(psnr < _COLLAPSED_DB for psnr in high.values()),
        ),
    ]


def _judge_solvers(comparison: Comparison, _: Mapping[str, int]) -> list[Finding]:
    solvers = dict.fromkeys(row.solver for row in comparison.rows)
    said = "; ".join(f"{name}: {_join(find_psnr(comparison.rows, solver=name))}" for name in solvers)
    return [Finding("which solver order loses least by skipping? (no claim known to us)", f"PSNR, dB: {said}", None)]


def _judge_steps(comparison: Comparison, _: Mapping[str, int]) -> list[Finding]:
    rows = comparison.rows
    steps = dict.fromkeys(row.num_steps for row in rows)
    said = "; ".join(f"{num} steps: {_join(find_psnr(rows, num_steps=num))}" for num in steps)
    longest = max(steps)
    against = [row for row in rows if row.nfe and row.to_longest.psnr_db is not None]
    skipped = [f"{row.nfe} calls by r = {row.ratio} of {longest}: {row.to_longest.psnr_db:.1f}"
               for row in against if row.num_steps == longest]  # fmt: skip
    fewer = [f"{row.nfe} calls by {row.num_steps} full steps: {row.to_longest.psnr_db:.1f}"
             for row in against if row.is_full]  # fmt: skip
    return [
        Finding("how does skipping fare with few steps? (no claim known to us)", f"PSNR, dB: {said}", None),
        Finding(
            "are skipped steps better than fewer steps, against the longest full run? (our question)",
            f"PSNR, dB: {'; '.join([*skipped, *fewer])}",
            None,
        ),
    ]


def _judge_parameterisation(comparison: Comparison, _: Mapping[str, int]) -> list[Finding]:
    said = _join(find_psnr(comparison.rows))
    return [
        Finding("does skipping depend on what the model predicts? (no claim known to us)", f"PSNR, dB: {said}", None)
    ]


def _judge_memory(comparison: Comparison, state: Mapping[str, int]) -> list[Finding]:
    peaks = {
        row.label: row.host_mib if row.device_mib is None else row.device_mib for row in comparison.rows if row.nfe
    }
    skipped = [peak for label, peak in peaks.items() if label in state and peak is not None]
    near = max(skipped) - min(skipped) <= _MEMORY_TOLERANCE * min(skipped)
    said = "; ".join(f"{label}: {state[label]} latents of state, {peaks[label]:.0f} MiB at the peak" for label in state)
    return [Finding("memory is O(1): it does not grow with r", said, near and len(set(state.values())) == 1)]


def _join(psnr: Mapping[int, float]) -> str:
    return ", ".join(f"r = {ratio}: {value:.1f}" for ratio, value in psnr.items())


STUDIES = {
    study.name: study
    for study in (
        Study(
            "predictor-order",
            "Predictor order: reuse, second, third",
            {"ratios": (0, 1, 2, 3), "predictors": ("reuse", "lagrange-2", "zeus", "lagrange-3")},
            _judge_order,
        ),
        Study(
            "interleaving",
            "Reuse-only, predictor-only, interleaved",
            {"ratios": range(8), "predictors": ("reuse", "extrapolate", "zeus")},
            _judge_interleaving,
        ),
        Study(
            "solver-order",
            "Solver order: Euler, DPM-Solver++ 2 and 3",
            {"ratios": (0, 2, 3), "solvers": ("euler", "dpmpp-2m", "dpmpp-3m")},
            _judge_solvers,
        ),
        Study("few-steps", "Few steps: 50, 25, 15", {"ratios": (0, 2, 3), "steps": (50, 25, 15)}, _judge_steps),
        Study(
            "parameterisation",
            "What the model predicts: epsilon, v, flow",
            {"ratios": (0, 2, 3, 4)},
            _judge_parameterisation,
        ),
        Study("memory", "Memory: r = 2 and r = 4", {"ratios": (0, 2, 4)}, _judge_memory),
    )
}
"""Name -> study."""
