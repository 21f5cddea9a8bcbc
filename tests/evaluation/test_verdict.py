"""The sentence on top of a report follows its rule, and speed-ups say where noise hides them."""

from dataclasses import replace

import pytest

from zeus_trt.evaluation.comparison import Comparison, list_marks
from zeus_trt.evaluation.quality import METRICS, Quality
from zeus_trt.evaluation.row import UNMEASURABLE, Row, Speedup, Times
from zeus_trt.evaluation.summary import compare_times
from zeus_trt.evaluation.timing import Run
from zeus_trt.evaluation.verdict import judge

TIMES = Times(100.0, 99.0, 101.0, 90.0, 5.0, 100.0)


def make_speedup(median, spread=0.02, num_rounds=9):
    low, high = median - spread / 2, median + spread / 2
    return Speedup(median, low, high, low, high, num_rounds)


def make_row(ratio, speedup=None, images=(55.0, 50.0), **changes):
    measured = [psnr for psnr in images if psnr is not None]
    plan = "F" * 50 if ratio == 0 else "F" * 25 + "XR" * 12 + "F"
    row = Row(
        f"r = {ratio}", "onnxruntime", "default", 50, ratio, plan, "zeus", None, nfe=plan.count("F"),
        speedup_bound=50 / plan.count("F"), times=TIMES, speedup=speedup or make_speedup(1.9),
        to_full=Quality(psnr_db=sum(measured) / len(measured) if measured else None), image_psnr_db=tuple(images),
    )  # fmt: skip
    return replace(row, **changes)


def make_comparison(*rows):
    full = make_row(0, Speedup(1.0, 1.0, 1.0, 1.0, 1.0, 9), (), label="full")
    settings = {"model": "toy", "metrics": METRICS, "has_eager_reference": False, "num_images": 2, "rounds": 9}
    return Comparison(settings, {"cpu": "some", "gpu": "none"}, {}, (), (full, *rows))


@pytest.mark.parametrize(
    ("row", "sentence", "tone"),
    [
        (make_row(2), "r = 2 is 1.90x faster at 52 dB; nothing you would see.", "good"),
        (make_row(2, images=(60.0, 39.0)), "r = 2 is 1.90x faster at 50 dB; small differences.", "fair"),
        (make_row(2, images=(60.0, 29.0)), "r = 2 is 1.90x faster at 44 dB; visible difference.", "bad"),
        (make_row(2, images=(None, 41.0)), "r = 2 is 1.90x faster at 41 dB; nothing you would see.", "good"),
        (
            make_row(2, images=(None, None), to_full=Quality()),
            "r = 2 is 1.90x faster; nothing you would see.",
            "good",
        ),
        (
            make_row(2, images=(), to_full=Quality()),
            "r = 2 is 1.90x faster; how it looks was not measured.",
            "fair",
        ),
        (make_row(2, make_speedup(0.8)), "r = 2 is slower (0.80x) at 52 dB; nothing you would see.", "bad"),
        (
            make_row(2, make_speedup(1.5, spread=0.6)),
            "The speed of r = 2 is not measurable here (1.20x to 1.80x) at 52 dB; nothing you would see.",
            "fair",
        ),
        (
            make_row(2, make_speedup(0.9, spread=0.2)),
            "The speed of r = 2 is not measurable here (0.80x to 1.00x) at 52 dB; nothing you would see.",
            "fair",
        ),
        (
            make_row(2, make_speedup(2.6), marks="!"),
            "r = 2 was measured wrongly (2.60x, of at most 1.92x) at 52 dB; nothing you would see.",
            "bad",
        ),
        (
            make_row(2, make_speedup(1.94, 0.1), marks="="),
            "r = 2 is at least 1.89x faster at 52 dB; nothing you would see.",
            "good",
        ),
        (
            make_row(2, marks="?"),
            "r = 2 did not run as planned (marks ?), so its figures do not count; nothing you would see.",
            "bad",
        ),
        (
            make_row(2, make_speedup(1.9, 0.0, num_rounds=1)),
            "r = 2 is 1.90x faster at 52 dB (one round: its spread is not known); nothing you would see.",
            "good",
        ),
    ],
    ids=lambda value: value.label if isinstance(value, Row) else None,
)  # fmt: skip
def test_the_sentence_follows_the_rule(row, sentence, tone):
    found = judge(make_comparison(row))
    assert (found.sentence, found.tone, found.row) == (sentence, tone, 1)
    assert make_comparison(row).to_json()["verdict"] == sentence


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([make_row(2), make_row(3, make_speedup(2.0)), make_row(4, make_speedup(2.2), images=(35.0,))], 2),
        ([make_row(2, images=(35.0,)), make_row(3, make_speedup(2.0), images=(20.0,))], 1),
        ([make_row(2, make_speedup(1.2)), make_row(3, make_speedup(2.2, spread=1.3))], 1),  # not measurable
        ([make_row(2, images=(35.0,)), make_row(3, make_speedup(2.9), marks="!")], 1),
        ([make_row(2, images=(20.0,)), make_row(3, marks="#")], 1),
        ([make_row(2, peer="pab"), make_row(3, nfe=None, times=None, speedup=None)], None),
        ([], None),
    ],
)
def test_the_row_that_is_spoken_of(rows, chosen):
    found = judge(make_comparison(*rows))
    assert found.row == chosen
    assert (chosen is None) == (found.sentence == "No skipped run was measured: there is nothing to judge.")


def make_runs(totals, session=""):
    return [
        Run(total, 0.0, 0.0, 1.0, None, 6, 6, 0, "toy", "step", "F", f"{session}{k}") for k, total in enumerate(totals)
    ]


def test_only_runs_of_one_round_are_compared():
    slow = [10.0, 20.0, 40.0]  # the machine becomes slower from round to round
    found = compare_times(make_runs(slow), make_runs([2 * total for total in slow]))
    assert (found.median, found.min, found.max, found.num_rounds) == (2.0, 2.0, 2.0, 3)
    shifted = compare_times(make_runs(slow)[1:], make_runs([20.0, 40.0]))
    assert (found.num_rounds, shifted.num_rounds, shifted.median) == (3, 1, 2.0)
    assert compare_times(make_runs(slow, "earlier"), make_runs(slow)) is None


@pytest.mark.parametrize(("count", "cut"), [(1, 0), (5, 0), (8, 0), (9, 1), (12, 2), (20, 5)])
def test_the_interval_is_that_of_the_sign_test(count, cut):
    ratios = [1 + k / 100 for k in range(count)]
    found = compare_times(make_runs([1 / ratio for ratio in ratios]), make_runs([1.0] * count))
    assert found.low == pytest.approx(ratios[cut])
    assert found.high == pytest.approx(ratios[count - 1 - cut])


def test_one_disturbed_round_of_nine_does_not_hide_a_gain():
    full, skipped = [200.0] * 9, [110.0] * 8 + [500.0]
    found = compare_times(make_runs(skipped), make_runs(full))
    assert found.is_measurable()
    assert (found.low, found.high, found.min) == (200 / 110, 200 / 110, 0.4)


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (make_speedup(1.9), "1.90 (1.89-1.91)"),
        (make_speedup(1.9, spread=0.95), UNMEASURABLE),
        (make_speedup(2.8, spread=1.0), UNMEASURABLE),  # 1.8 of gain is more than the bound of 1.92 allows
        (make_speedup(1.05, spread=0.06), UNMEASURABLE),
        (make_speedup(0.7, spread=0.1), "0.70 (0.65-0.75)"),
        (make_speedup(1.9, 0.0, num_rounds=1), "1.90 (1 round)"),
    ],
)
def test_a_gain_below_the_spread_is_not_measurable(speedup, said):
    row = make_row(2, speedup)
    assert row.describe_speedup() == said
    text = make_comparison(row).to_table(80)
    assert said in text
    assert (f"{UNMEASURABLE}: the rounds differ" in text) == (said == UNMEASURABLE)


def test_the_picture_explains_the_marks_of_the_table():
    rows = [make_row(2, marks="!~"), make_row(3, make_speedup(1.1, 0.5))]
    assert [line[:3] for line in list_marks(rows)] == ["! f", "~ i", "not"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_fits_the_width(width):
    rows = [
        make_row(2, backend=backend, solver=solver, predictor="zeus-previous-full", host_mib=1000.0, marks="=~",
                 label=label)
        for backend in ("onnxruntime", "aot-inductor") for solver in ("default", "dpmpp-2m")
        for label in ("r = 2", "a-long-name-of-a-calibrated-plan")
    ]  # fmt: skip
    lines = make_comparison(*rows).to_table(width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("1.90 (1.89-1.91)" in line for line in lines) == len(rows)
    assert any("dpmpp-2m" in line for line in lines)
    assert any(line.startswith("in the report, not here:") for line in lines) == (width < 200)
