"""One sentence on what skipping gains and costs, by a written rule."""

from dataclasses import dataclass
from math import inf

from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.row import Row

UNSEEN_DB, VISIBLE_DB = 40.0, 30.0
UNSEEN, SMALL, VISIBLE, UNKNOWN = (
    "nothing you would see",
    "small differences",
    "visible difference",
    "how it looks was not measured",
)
RULE = (
    f"Look: “{UNSEEN}” where every image has {UNSEEN_DB:.0f} dB or more to the full run (an error of at most "
    f"1 % of the range, root mean square); “{SMALL}” from {VISIBLE_DB:.0f} dB on (3 %); “{VISIBLE}” "
    "where an image has less. Of a video the worst frame counts.",
    "Speed: the median over the rounds of full time / skipped time, both of one round. It is “not measurable "
    "here” where its 95 % interval is as wide as the gain or wider, “slower” below 1, and a wrong measurement "
    "where the whole interval is above N / NFE by more than the solver time that skipping saves. Where only the median "
    "is above N / NFE, it is “at least” the lower end of the interval.",
    "Choice: of the skipped runs those that look best, of these the fastest that is measurable; one that was measured "
    "wrongly or did not run as planned only where there is no other.",
)
"""The rule of the sentence, a paragraph each."""


@dataclass(frozen=True)
class Verdict:
    """A sentence on a comparison.

    Args:
        sentence: The verdict.
        tone: ``good`` where it is faster and nothing is seen, ``bad`` where it should not be used like this, else
            ``fair``.
        row: Number of the row that the sentence is about; None without a skipped run.
    """

    sentence: str
    tone: str
    row: int | None = None


def judge(comparison: Comparison) -> Verdict:
    """The verdict on a comparison, by ``RULE``: from the PSNR of every image and the times of the rounds."""
    rows = comparison.rows
    skipped = [k for k, row in enumerate(rows) if row.is_skipped and row.speedup]
    if not skipped:
        return Verdict("No skipped run was measured: there is nothing to judge.", "fair")
    chosen = max(skipped, key=lambda k: _rank(rows[k]))
    row, name = rows[chosen], comparison.names[chosen]
    look, speed = judge_look(row), judge_speed(row)
    at = "" if row.to_full.psnr_db is None else f" at {row.to_full.psnr_db:.0f} dB"
    assert row.speedup
    factor, bound = f"{row.speedup.median:.2f}x", row.speedup_bound or inf
    if "=" in row.marks:
        factor = f"at least {min(row.speedup.low, bound):.2f}x"
    said = {
        "faster": f"{name} is {factor} faster{at}",
        "slower": f"{name} is slower ({factor}){at}",
        "not measurable": f"The speed of {name} is not measurable here ({row.speedup.low:.2f}x to "
        f"{row.speedup.high:.2f}x){at}",
        "wrong": f"{name} was measured wrongly ({factor}, of at most {bound:.2f}x){at}",
        "fallback": f"{name} did not run as planned (marks {row.marks}), so its figures do not count",
    }[speed]
    rounds = " (one round: its spread is not known)" if row.speedup.num_rounds == 1 and speed == "faster" else ""
    tone = "bad" if look == VISIBLE or speed in ("slower", "wrong", "fallback") else "fair"
    tone = "good" if look == UNSEEN and speed == "faster" else tone
    return Verdict(f"{said}{rounds}; {look}.", tone, chosen)


def judge_look(row: Row) -> str:
    """``UNSEEN``, ``SMALL``, ``VISIBLE`` or ``UNKNOWN``, by the worst image."""
    if not row.image_psnr_db:
        return UNKNOWN
    worst = min((psnr for psnr in row.image_psnr_db if psnr is not None), default=UNSEEN_DB)
    return UNSEEN if worst >= UNSEEN_DB else SMALL if worst >= VISIBLE_DB else VISIBLE


def judge_speed(row: Row) -> str:
    """``faster``, ``slower``, ``not measurable``, ``wrong`` (impossibly fast) or ``fallback``."""
    assert row.speedup
    if set(row.marks) & set("#?"):
        return "fallback"
    if "!" in row.marks:
        return "wrong"
    if not row.speedup.is_measurable(row.speedup_bound):
        return "not measurable"
    return "faster" if row.speedup.median > 1 else "slower"


def _rank(row: Row) -> tuple[bool, int, int, float]:
    look = (UNKNOWN, VISIBLE, SMALL, UNSEEN).index(judge_look(row))
    speed = ("fallback", "wrong", "slower", "not measurable", "faster").index(judge_speed(row))
    return speed > 1, look, speed, row.speedup.median if row.speedup else 0.0
