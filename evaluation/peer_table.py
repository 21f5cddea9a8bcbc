"""Caches beside the skipped runs that take as long, or do as much work."""

from collections.abc import Callable, Sequence

from zeus_trt.evaluation.comparison import Row

HEAD = (
    "cache",
    "NFE eq.",
    "ms/image",
    "PSNR dB",
    "not slower",
    "ms/image",
    "PSNR dB",
    "no more work",
    "NFE",
    "PSNR dB",
)


def pair_peers(rows: Sequence[Row]) -> tuple[Sequence[str], list[list[str]]] | None:
    """Head and lines of the table; None without peers that ran, or without skipped runs of the same engine.

    Each cache is paired with the best skipped run of its group that is not slower, and the best one of no more work.
    """
    lines = []
    for peer in rows:
        if peer.peer is None or peer.times is None:
            continue
        skipped = [row for row in rows if row.group == peer.group and not row.peer and not row.is_full and row.times]
        if skipped:
            fast, light = (_find_best(peer, skipped, read) for read in (_read_ms, _read_nfe))
            lines.append([
                peer.label, f"{_read_nfe(peer):.1f}", f"{_read_ms(peer):.1f}", _say_psnr(peer),
                _name(fast), f"{_read_ms(fast):.1f}" if fast else "", _say_psnr(fast),
                _name(light), f"{_read_nfe(light):.0f}" if light else "", _say_psnr(light),
            ])  # fmt: skip
    return (HEAD, lines) if lines else None


def _find_best(peer: Row, skipped: Sequence[Row], read: Callable[[Row], float]) -> Row | None:
    allowed = [row for row in skipped if read(row) <= read(peer)]
    return max(allowed, key=lambda row: row.to_full.psnr_db or 0.0, default=None)


def _read_ms(row: Row) -> float:
    return row.times.ms_per_image if row.times else 0.0


def _read_nfe(row: Row) -> float:
    return row.nfe_equivalent or 0.0


def _name(row: Row | None) -> str:
    return f"{row.label}, {row.predictor}" if row else "none"


def _say_psnr(row: Row | None) -> str:
    if row is None:
        return ""
    return "equal" if row.to_full.psnr_db is None else f"{row.to_full.psnr_db:.1f}"
