"""Rivals beside ZEUS, and caches below its plans: what runs for these two tables, and the rules that judge them."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from paper_rules import Verdict, agree, read_psnr

from zeus_trt.evaluation.peer import Peer
from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.variants import Grid, NamedPlan
from zeus_trt.zeus_graph import Plan, choose_plan

CLOSE_DB = 3.0  # two independent errors of equal size add up to 3 dB more
_RIVALS = ("taylorseer", "taylorseer-lite", "adaptive-diffusion", "sada", "deepcache", "teacache")
_CACHES = ("pab=2", "faster-cache=2", "first-block-cache=0.05", "mag-cache=0.06", "taylorseer=3", "taylorseer-lite=3")
_SAME_CALLS = 1e-6


def write_taylorseer_plan(interval: int) -> NamedPlan:
    """TaylorSeer's lite mode as a plan, for networks that diffusers' hooks do not know.

    As these do by default, it runs the first three steps, then every ``interval``-th from the second on, and continues
    the line through the last two full outputs. The last step is full.
    """

    def make(count: int) -> Plan:
        full = [step for step in range(count) if step < 3 or (step - 4) % interval == 0 or step == count - 1]
        return Plan.from_full_steps(count, full).with_predictor("lagrange-2@index")

    return NamedPlan(f"taylorseer-lite {interval} as a plan", make)


def _read_peers(texts: Sequence[str]) -> list[Peer]:
    return [peer for text in texts for peer in Peer.parse(text)]


RIVALS = Grid(
    ratios=(0, 1, 2, 3, 4, 6),
    plans=[
        *(NamedPlan(f"r = {ratio}, no window", choose_plan(ratio=ratio, window="none")) for ratio in (2, 3, 4)),
        *(write_taylorseer_plan(interval) for interval in (3, 5)),
    ],
    peers=_read_peers(_RIVALS),
)
COMPOSED = Grid(ratios=(0, 2, 4), peers=_read_peers(_CACHES), compose=True)


def beats_rivals(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """A ``zeus`` run of no more calls than the rival has a higher PSNR, for every rival.

    A rival of fewer calls than any run of ours is ahead if it is no worse than our run of the fewest; otherwise the two
    cannot be compared, and it says nothing.
    """
    ran = [row for row in rows if row.nfe and not row.is_full]
    ours = [row for row in ran if not row.peer and row.predictor == "zeus"]
    said, checks = [], []
    for rival in ran if ours else ():
        if rival in ours:
            continue
        calls = _read_calls(rival)
        light = [row for row in ours if _read_calls(row) <= calls + _SAME_CALLS]
        best = max(light, key=read_psnr, default=None) or min(ours, key=_read_calls)
        beats = read_psnr(best) > read_psnr(rival)
        comparable = bool(light) or not beats
        checks += [beats] if comparable else []
        said.append(
            f"{rival.label}: {read_psnr(rival):.1f} with {calls:.1f}, ours {read_psnr(best):.1f} with {best.nfe}"
            f"{'' if comparable else ' (not comparable)'}"
        )
    return f"PSNR, dB, and calls: {'; '.join(said)}", agree(checks)


def _read_calls(row: Row) -> float:
    return row.nfe_equivalent or 0.0


def _list_composed(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, Row]]:
    """Every run of a cache below a plan, with that of the plan alone and that of the cache alone."""
    alone = {(row.plan, row.peer): row for row in rows}
    for row in rows:
        plan, cache = alone.get((row.plan, None)), alone.get(("F" * len(row.plan), row.peer))
        if row.peer and plan and cache and row is not cache and row.nfe:
            yield row, plan, cache


def needs_fewer_calls_composed(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """Every composed run has fewer calls than its plan alone and than its cache alone."""
    said, checks = [], []
    for row, plan, cache in _list_composed(rows):
        calls, apart = _read_calls(row), (_read_calls(plan), _read_calls(cache))
        said.append(f"{row.label}: {calls:.1f}, alone {apart[0]:.0f} and {apart[1]:.1f}")
        checks.append(calls < min(apart))
    return f"calls: {'; '.join(said)}", agree(checks)


def is_faster_composed(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """Every composed run is faster than its plan and its cache alone.

    One round has no spread, so it has no verdict. Nor have speed-ups above the bound by more than their spread, which
    the work saved does not explain: the machine was busy.
    """
    said, checks, doubtful = [], [], False
    for row, plan, cache in _list_composed(rows):
        speeds = [one.speedup for one in (row, plan, cache) if one.speedup]
        if len(speeds) == 3:
            composed, *apart = (speed.median for speed in speeds)
            said.append(f"{row.label}: {composed:.2f}x, alone {apart[0]:.2f}x and {apart[1]:.2f}x")
            checks.append(composed > max(apart))
            if speeds[0].num_rounds < 2:
                return "not measured: one round has no spread", None
            doubtful |= any(one.speedup and one.speedup.low > (one.speedup_bound or inf) for one in (row, plan, cache))
    return f"speed-ups: {'; '.join(said)}", None if doubtful else agree(checks)


def stays_close_composed(rows: Sequence[Row], _: Mapping[str, int]) -> Verdict:
    """Every composed run is at most ``CLOSE_DB`` below the worse of its plan alone and its cache alone."""
    said, checks = [], []
    for row, plan, cache in _list_composed(rows):
        worse = min(read_psnr(plan), read_psnr(cache))
        said.append(f"{row.label}: {read_psnr(row):.1f}, alone {read_psnr(plan):.1f} and {read_psnr(cache):.1f}")
        checks.append(read_psnr(row) >= worse - CLOSE_DB)
    return f"PSNR, dB: {'; '.join(said)}", agree(checks)
