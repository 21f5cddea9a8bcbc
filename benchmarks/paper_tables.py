"""The tables of the ZEUS paper: what each one claims, what runs for it, and the rule by which a claim agrees.

A rule is a function of the rows of a comparison, and of the latents of state by row label. It returns what was measured
in words, and whether that agrees; None where the paper claims nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.variants import Grid

COLLAPSED_DB = 15.0  # below it nothing of the full run's picture is left to recognise
HIGH_RATIO = 4
MEMORY_TOLERANCE = 0.05

Verdict = tuple[str, bool | None]
Rule = Callable[[Sequence[Row], Mapping[str, int]], Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a question of ours, and the rule that judges it."""

    text: str
    rule: Rule


@dataclass(frozen=True)
class PaperTable:
    """One table.

    Args:
        name: On the command line.
        title: The question.
        grid: What runs.
        claims: What the paper says.
        every_model: Run it on every model, not on the first one only.
    """

    name: str
    title: str
    grid: Grid
    claims: tuple[Claim, ...]
    every_model: bool = False


def find_psnr(rows: Sequence[Row], **fields: Any) -> dict[int, float]:
    """PSNR by ratio of the rows with these fields; infinity where the images are equal."""
    return {
        row.ratio: float("inf") if row.to_full.psnr_db is None else row.to_full.psnr_db
        for row in rows
        if row.ratio and row.nfe and all(getattr(row, name) == value for name, value in fields.items())
    }


def _list_gains(rows: Sequence[Row], better: str, worse: str) -> tuple[str, list[float]]:
    high, low = find_psnr(rows, predictor=better), find_psnr(rows, predictor=worse)
    gains = {ratio: high[ratio] - low[ratio] for ratio in high if ratio in low}
    said = ", ".join(f"r = {ratio}: {gain:+.1f}" for ratio, gain in gains.items())
    return f"{better} over {worse}, dB: {said}", list(gains.values())


def _join(psnr: Mapping[int, float]) -> str:
    return ", ".join(f"r = {ratio}: {value:.1f}" for ratio, value in psnr.items())


def beats_reuse(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``zeus`` is better than ``reuse`` at every ratio."""
    said, gains = _list_gains(rows, "zeus", "reuse")
    return said, all(gain > 0 for gain in gains)


def gains_nothing_by_a_third_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``lagrange-3`` is better than ``zeus`` at no ratio."""
    third, gains = _list_gains(rows, "lagrange-3@index", "zeus")
    plain, _gains = _list_gains(rows, "lagrange-3@index", "lagrange-2@index")
    return f"{third}; {plain}", all(gain <= 0 for gain in gains)


def collapses(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``extrapolate`` is below ``COLLAPSED_DB`` from ``HIGH_RATIO`` on."""
    chained = find_psnr(rows, predictor="extrapolate")
    return f"PSNR, dB: {_join(chained)}", all(
        psnr < COLLAPSED_DB for ratio, psnr in chained.items() if ratio >= HIGH_RATIO
    )


def lists_psnr(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """No claim: the PSNR."""
    return f"PSNR, dB: {_join(find_psnr(rows))}", None


def lists_solvers(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """No claim: the PSNR by solver."""
    names = dict.fromkeys(row.solver for row in rows)
    return "PSNR, dB: " + "; ".join(f"{name}: {_join(find_psnr(rows, solver=name))}" for name in names), None


def lists_steps(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """No claim: the PSNR by number of steps."""
    counts = dict.fromkeys(row.num_steps for row in rows)
    return "PSNR, dB: " + "; ".join(f"{num} steps: {_join(find_psnr(rows, num_steps=num))}" for num in counts), None


def lists_calls(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """No claim: skipped steps beside fewer steps, both against the longest full run."""
    longest = max(row.num_steps for row in rows)
    against = [row for row in rows if row.nfe and row.to_longest.psnr_db is not None]
    skipped = [
        f"{row.nfe} calls by r = {row.ratio} of {longest}: {row.to_longest.psnr_db:.1f}"
        for row in against
        if row.num_steps == longest
    ]
    fewer = [
        f"{row.nfe} calls by {row.num_steps} full steps: {row.to_longest.psnr_db:.1f}" for row in against if row.is_full
    ]
    return f"PSNR, dB: {'; '.join([*skipped, *fewer])}", None


def needs_constant_memory(rows: Sequence[Row], state: Mapping[str, int]) -> Verdict:
    """The state is one number of latents, and the peaks are within ``MEMORY_TOLERANCE``."""
    peaks = {row.label: row.host_mib if row.device_mib is None else row.device_mib for row in rows if row.nfe}
    skipped = [peak for label, peak in peaks.items() if label in state and peak is not None]
    near = max(skipped) - min(skipped) <= MEMORY_TOLERANCE * min(skipped)
    said = "; ".join(f"{label}: {state[label]} latents of state, {peaks[label]:.0f} MiB at the peak" for label in state)
    return said, near and len(set(state.values())) == 1


TABLES = {
    table.name: table
    for table in (
        PaperTable(
            "predictor-order",
            "Predictor order: reuse, second, third",
            Grid(ratios=(0, 1, 2, 3), predictors=("reuse", "lagrange-2", "zeus", "lagrange-3")),
            (
                Claim("a second-order predictor is better than reuse", beats_reuse),
                Claim("a third order does not help", gains_nothing_by_a_third_order),
            ),
            every_model=True,
        ),
        PaperTable(
            "interleaving",
            "Reuse-only, predictor-only, interleaved",
            Grid(ratios=range(8), predictors=("reuse", "extrapolate", "zeus")),
            (
                Claim("reuse-only is worse than interleaved", beats_reuse),
                Claim(
                    f"predictor-only collapses at high r (here: below {COLLAPSED_DB:.0f} dB from r = {HIGH_RATIO} on)",
                    collapses,
                ),
            ),
        ),
        PaperTable(
            "solver-order",
            "Solver order: Euler, DPM-Solver++ 2 and 3",
            Grid(ratios=(0, 2, 3), solvers=("euler", "dpmpp-2m", "dpmpp-3m")),
            (Claim("which solver order loses least by skipping? (no claim known to us)", lists_solvers),),
        ),
        PaperTable(
            "few-steps",
            "Few steps: 50, 25, 15",
            Grid(ratios=(0, 2, 3), steps=(50, 25, 15)),
            (
                Claim("how does skipping fare with few steps? (no claim known to us)", lists_steps),
                Claim(
                    "are skipped steps better than fewer steps, against the longest full run? (our question)",
                    lists_calls,
                ),
            ),
        ),
        PaperTable(
            "parameterisation",
            "What the model predicts: epsilon, v, flow",
            Grid(ratios=(0, 2, 3, 4)),
            (Claim("does skipping depend on what the model predicts? (no claim known to us)", lists_psnr),),
            every_model=True,
        ),
        PaperTable(
            "memory",
            "Memory: r = 2 and r = 4",
            Grid(ratios=(0, 2, 4)),
            (Claim("memory is O(1): it does not grow with r", needs_constant_memory),),
        ),
    )
}
"""Name -> table."""
