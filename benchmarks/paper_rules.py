"""The rules by which a table of the ZEUS paper agrees with what was measured.

A rule is a function of the rows of a comparison, and of the latents of state by row label; a rule across models is one
of the rows by model. It returns what was measured in words, and whether that agrees: None where the paper claims
nothing, or where what it claims was not measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.verdict import VISIBLE_DB

COLLAPSED_DB = 15.0  # below it nothing of the full run's picture is left to recognise
SAME_DB = 1.0  # PSNR that differs by no more counts as unchanged
HIGH_RATIO = 4
MEMORY_TOLERANCE = 0.05
SOLVER_ORDERS = {"euler": 1, "dpmpp-2m": 2, "dpmpp-3m": 3}
FEW_CALLS = {50: 27, 25: 16, 15: 12}
"""Steps -> calls, as the paper's table of few steps has them."""

Verdict = tuple[str, bool | None]
Rule = Callable[[Sequence[Row], Mapping[str, int]], Verdict]
RuleAcross = Callable[[Mapping[str, Sequence[Row]]], Verdict]


def agree(checks: Iterable[bool]) -> bool | None:
    """Whether all checks hold; None without one."""
    found = list(checks)
    return all(found) if found else None


def read_psnr(row: Row) -> float:
    """PSNR to the full run; infinity where the images are equal."""
    return float("inf") if row.to_full.psnr_db is None else row.to_full.psnr_db


def find_psnr(rows: Sequence[Row], **fields: Any) -> dict[int, float]:
    """PSNR by ratio of the rows with these fields; infinity where the images are equal."""
    return {
        row.ratio: read_psnr(row)
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
    return said, agree(gain > 0 for gain in gains)


def gains_nothing_by_a_third_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``lagrange-3`` is better than ``zeus`` at no ratio."""
    third, gains = _list_gains(rows, "lagrange-3@index", "zeus")
    plain, _gains = _list_gains(rows, "lagrange-3@index", "lagrange-2@index")
    return f"{third}; {plain}", agree(gain <= 0 for gain in gains)


def gains_by_a_second_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``local-2`` is better than ``local-1`` at r = 1."""
    said, gains = _list_gains(rows, "local-2@index", "local-1@index")
    return said, gains[0] > 0 if gains else None


def loses_by_a_third_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``local-3`` is worse than ``local-2`` at every ratio where one of them has not collapsed."""
    second, third = (find_psnr(rows, predictor=f"local-{order}@index") for order in (2, 3))
    lost = [ratio for ratio in second if max(second[ratio], third.get(ratio, 0.0)) < COLLAPSED_DB]
    said, _gains = _list_gains([row for row in rows if row.ratio not in lost], "local-3@index", "local-2@index")
    checks = [third[ratio] < psnr for ratio, psnr in second.items() if ratio in third and ratio not in lost]
    return said + (f"; both collapse at r = {', '.join(map(str, lost))}" if lost else ""), agree(checks)


def collapses(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """``extrapolate`` is below ``COLLAPSED_DB`` from ``HIGH_RATIO`` on."""
    chained = find_psnr(rows, predictor="extrapolate")
    return f"PSNR, dB: {_join(chained)}", agree(
        psnr < COLLAPSED_DB for ratio, psnr in chained.items() if ratio >= HIGH_RATIO
    )


def improves_perception_with_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """A higher solver order has a smaller LPIPS and a smaller FID at every ratio, where these are measured."""
    said, falls = [], []
    for name, metric in (("LPIPS", "lpips"), ("FID", "fid")):
        series = _group(
            rows, lambda row: SOLVER_ORDERS[row.solver], lambda row, metric=metric: getattr(row.to_full, metric)
        )
        if not series or any(None in values.values() for values in series.values()):
            said.append(f"{name} was not measured")
            continue
        said += [f"{name} by order, r = {ratio}: {_list_values(values, '.4f')}" for ratio, values in series.items()]
        falls += [_is_falling(values, 0.0) for values in series.values() if len(values) > 1]
    return "; ".join(said), agree(falls)


def keeps_psnr_with_order(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """PSNR differs by at most ``SAME_DB`` between solver orders, at every ratio."""
    series = _group(rows, lambda row: SOLVER_ORDERS[row.solver], read_psnr)
    said = [f"r = {ratio}: {_list_values(values)}" for ratio, values in series.items()]
    spreads = [_spread(values.values()) for values in series.values() if len(values) > 1]
    return f"PSNR by order, dB: {'; '.join(said)}", agree(spread <= SAME_DB for spread in spreads)


def keeps_similarity_with_fewer_steps(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """From every number of steps to the next smaller one PSNR falls by at most ``SAME_DB``, at every ratio."""
    series = _group(rows, lambda row: -row.num_steps, read_psnr)
    said = [f"r = {ratio}: {_list_values({-steps: psnr for steps, psnr in values.items()})}"
            for ratio, values in series.items()]  # fmt: skip
    kept = [
        _is_falling({step: -psnr for step, psnr in values.items()}, SAME_DB)
        for values in series.values()
        if len(values) > 1
    ]
    return f"PSNR by steps, dB: {'; '.join(said)}", agree(kept)


def needs_few_calls(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """At r = 2 every number of steps has the calls of ``FEW_CALLS``."""
    calls = {row.num_steps: row.nfe for row in rows if row.ratio == 2 and row.nfe}
    said = ", ".join(f"{steps} steps: {nfe} ({steps / nfe:.2f}x at most)" for steps, nfe in calls.items())
    return f"calls at r = 2: {said}", calls == FEW_CALLS


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
    """The peaks are within ``MEMORY_TOLERANCE``, and programs keep one number of latents; pipelines have no program."""
    peaks = {}
    for row in rows:
        peak = row.host_mib if row.device_mib is None else row.device_mib
        if row.ratio and row.nfe and peak is not None:
            peaks[row.label] = peak
    said = [
        f"{label}: " + (f"{state[label]} latents of state, " if label in state else "") + f"{peak:.0f} MiB at the peak"
        for label, peak in peaks.items()
    ]
    if len(peaks) < 2:
        return "; ".join(said), None
    low, high = min(peaks.values()), max(peaks.values())
    return "; ".join(said), high - low <= MEMORY_TOLERANCE * low and len(set(state.values())) <= 1


def keeps_the_picture_on_every_model(models: Mapping[str, Sequence[Row]]) -> Verdict:
    """Every model has ``VISIBLE_DB`` or more at every ratio; None for one model."""
    by_model = {name: find_psnr(rows) for name, rows in models.items()}
    said = "; ".join(f"{name}: {_join(psnr)}" for name, psnr in by_model.items())
    kept = all(value >= VISIBLE_DB for psnr in by_model.values() for value in psnr.values())
    return f"PSNR, dB: {said}", kept if len(models) > 1 else None


def loses_the_same_on_every_model(models: Mapping[str, Sequence[Row]]) -> Verdict:
    """PSNR differs by at most ``SAME_DB`` between models at every ratio; None for one model."""
    by_ratio: dict[int, list[float]] = {}
    for rows in models.values():
        for ratio, psnr in find_psnr(rows).items():
            by_ratio.setdefault(ratio, []).append(psnr)
    spreads = {ratio: _spread(psnr) for ratio, psnr in by_ratio.items()}
    same = all(spread <= SAME_DB for spread in spreads.values())
    return f"between the models, dB: {_join(spreads)}", same if len(models) > 1 else None


def _group(
    rows: Sequence[Row], key: Callable[[Row], int], read: Callable[[Row], float | None]
) -> dict[int, dict[int, Any]]:
    """Ratio -> key -> value of the skipped rows, keys in order."""
    found: dict[int, dict[int, Any]] = {}
    for row in sorted((row for row in rows if row.ratio and row.nfe), key=key):
        found.setdefault(row.ratio or 0, {})[key(row)] = read(row)
    return dict(sorted(found.items()))


def _is_falling(values: Mapping[int, float], slack: float) -> bool:
    """Whether every value is below the one before it, or above it by at most ``slack``."""
    ordered = list(values.values())
    return all(b < a if slack == 0 else b <= a + slack for a, b in pairwise(ordered))


def _spread(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return 0.0 if ordered[0] == ordered[-1] else ordered[-1] - ordered[0]


def _list_values(values: Mapping[int, float], style: str = ".1f") -> str:
    return ", ".join(f"{key}: {value:{style}}" for key, value in values.items())
