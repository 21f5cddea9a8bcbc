"""The verdicts on rivals and on caches below plans follow from the rows, made up here."""

import runpy

import pytest
from checkout import ROOT

from zeus_trt.evaluation.quality import Quality
from zeus_trt.evaluation.row import Row, Speedup

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "benchmarks")
    PAPER = runpy.run_path(str(ROOT / "benchmarks" / "paper.py"))
STUDIES = PAPER["STUDIES"]
FULL, PLAN = "FFFFFF", "FFXRFF"


def make_row(label, calls, psnr, ratio=None, plan=FULL, peer=None, speed=1.0, rounds=3, predictor="zeus"):
    speedup = Speedup(speed, speed, speed, speed, speed, rounds)
    return Row(label, "eager", "default", 6, ratio, plan, predictor, peer, nfe=plan.count("F"), nfe_equivalent=calls,
               speedup_bound=6 / calls, speedup=speedup, to_full=Quality(psnr_db=psnr))  # fmt: skip


def judge(name, rows):
    return [finding.agrees for finding in STUDIES[name].judge(rows, {})]


@pytest.mark.parametrize(
    ("calls", "psnr", "agrees"),
    [
        (4.0, 49.0, True),
        (4.0, 51.0, False),
        (4.0, 50.0, False),
        (5.0, 55.0, True),  # beside the run of five calls
        (3.0, 39.0, None),  # fewer calls than any of ours, and worse
        (3.0, 51.0, False),  # fewer calls, and better
        (4.0, None, False),  # an equal picture
    ],
)
def test_rivals(calls, psnr, agrees):
    ours = [make_row("r = 1", 5.0, 60.0, 1, "FFXFFF"), make_row("r = 2", 4.0, 50.0, 2, PLAN)]
    full = make_row("full", 6.0, None, 0)
    for rival in (
        make_row("sada 4", calls, psnr, peer="sada 4"),
        make_row("line", calls, psnr, plan=PLAN, predictor="lagrange-2"),
    ):
        assert judge("baselines", [full, *ours, rival]) == [agrees]
    assert judge("baselines", [full, *ours]) == [None]


def test_one_rival_that_wins_is_enough():
    rows = [
        make_row("r = 2", 4.0, 50.0, 2, PLAN),
        make_row("a", 4.0, 40.0, peer="a"),
        make_row("b", 4.5, 51.0, peer="b"),
    ]
    (finding,) = STUDIES["baselines"].judge(rows, {})
    assert finding.agrees is False
    assert finding.measured == (
        "PSNR, dB, and calls: a: 40.0 with 4.0, ours 50.0 with 4; b: 51.0 with 4.5, ours 50.0 with 4"
    )


@pytest.mark.parametrize(
    ("both", "agrees"),
    [
        ({"calls": 3.0, "psnr": 42.0, "speed": 1.5}, [True, True, True]),
        ({"calls": 4.0, "psnr": 42.0, "speed": 1.5}, [False, True, True]),
        ({"calls": 3.0, "psnr": 41.9, "speed": 1.5}, [True, True, False]),
        ({"calls": 3.0, "psnr": 42.0, "speed": 1.4}, [True, False, True]),
        ({"calls": 3.0, "psnr": 42.0, "speed": 1.5, "rounds": 1}, [True, None, True]),
    ],
)
def test_composition(both, agrees):
    rows = [
        make_row("full", 6.0, None, 0), make_row("r = 2", 4.0, 50.0, 2, PLAN, speed=1.4),
        make_row("pab 2", 5.0, 45.0, peer="pab 2", speed=1.2),
        make_row("r = 2 + pab 2", plan=PLAN, peer="pab 2", **both),
    ]  # fmt: skip
    assert judge("composition", rows) == agrees
    assert judge("composition", rows[:3]) == [None, None, None]


def test_an_impossible_speed_up_has_no_verdict():
    rows = [
        make_row("r = 2", 4.0, 50.0, 2, PLAN, speed=5.0), make_row("pab 2", 5.0, 45.0, peer="pab 2"),
        make_row("r = 2 + pab 2", 3.0, 45.0, plan=PLAN, peer="pab 2", speed=6.0),
    ]  # fmt: skip
    assert judge("composition", rows) == [True, None, True]


def test_the_models_of_a_table():
    names = [f"digits-{name}" for name in ("unet-flow", "unet-v", "dit-flow")]
    listed = {name: PAPER["list_models"](STUDIES[name], names) for name in STUDIES}
    assert listed["baselines"] == ["digits-unet-flow", "digits-dit-flow"]
    assert listed["composition"] == ["digits-dit-flow"]
    assert listed["memory"] == ["digits-unet-flow"]
    assert listed["parameterisation"] == names
    assert PAPER["list_models"](STUDIES["composition"], ["other"]) == ["other"]
