"""Step plans: the windows, the presets, what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import PRESETS, WINDOWS, Plan, Predictor, choose_plan
from zeus_trt.zeus_graph.window import read_window


@pytest.mark.parametrize(
    ("ratio", "full"),
    [
        (2, [*range(10), *range(10, 44, 3), *range(45, 50)]),
        (3, [*range(10), *range(10, 45, 4), *range(45, 50)]),
        (4, [*range(10), *range(10, 45, 5), *range(45, 50)]),
    ],
)
def test_full_steps_of_50(ratio, full):
    plan = Plan.uniform(50, ratio)
    assert list(plan.full_steps) == full
    assert plan.nfe == {2: 27, 3: 24, 4: 22}[ratio]
    assert plan.speedup_bound == 50 / plan.nfe


def test_window_of_20_steps():
    assert str(Plan.uniform(20, 3)) == "FFFFFXRXFXRXFXRXFXFF"


@pytest.mark.parametrize(("ratio", "nfe"), [(2, 24), (3, 20), (4, 18)])
def test_flow_window(ratio, nfe):
    assert Plan.uniform(50, ratio, WINDOWS["flow"]).nfe == nfe


def test_no_window_keeps_two_full_steps_and_the_last():
    assert str(Plan.uniform(10, 2, WINDOWS["none"])) == "FFXRFXRFXF"


def test_presets():
    assert PRESETS == {"medium": 2, "fast": 3, "turbo": 4}


@given(st.integers(4, 200), st.integers(0, 8))
def test_last_step_is_full(num_steps, ratio):
    plan = Plan.uniform(num_steps, ratio)
    low, high = math.ceil(round(0.2 * num_steps, 6)), num_steps - math.ceil(round(0.1 * num_steps, 6))
    assert plan.is_full(num_steps - 1)
    assert all(plan.is_full(i) for i in [*range(low), *range(high, num_steps)])
    assert plan.nfe == low + math.ceil((high - low) / (ratio + 1)) + num_steps - high
    assert (plan.nfe == num_steps) == (ratio == 0 or high - low <= 1)
    assert max((len(gap) for gap in str(plan).split("F")), default=0) <= ratio


@given(st.integers(3, 60), st.data())
def test_spread_has_the_nfe_asked_for(num_steps, data):
    nfe = data.draw(st.integers(3, num_steps))
    plan = Plan.spread(num_steps, nfe)
    assert plan.nfe == nfe
    assert plan.is_full(0)
    assert plan.is_full(1)
    gaps = [b - a for a, b in zip(plan.full_steps[1:], plan.full_steps[2:], strict=False)]
    assert max(gaps) - min(gaps) <= 1


@given(st.integers(1, 80), st.integers(0, 8))
def test_text_and_json_round_trip(num_steps, ratio):
    plan = Plan.uniform(num_steps, ratio)
    assert Plan(f" {str(plan).lower()} \n") == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_full_steps(num_steps, plan.full_steps) == plan


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("", "no steps"),
        ("FFZF", "got Z"),
        ("XFFF", "first step"),
        ("RFFF", "first step"),
        ("FFFX", "last step"),
        ("FXFF", "two full steps"),
        ("FRXF", "two full steps"),
    ],
)
def test_invalid_plans_are_refused(steps, reason):
    with pytest.raises(ZeusError, match=reason):
        Plan(steps)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plan.uniform(50, -1),
        lambda: Plan.uniform(0, 1),
        lambda: Plan.uniform(50, 2, (0.2, 1.1)),
        lambda: Plan.spread(50, 2),
        lambda: Plan.from_full_steps(5, [0, 1, 5]),
        lambda: Plan.from_json({"format": 2, "steps": "FF"}),
        lambda: Plan.from_json({"steps": 3}),
        lambda: Plan("FFXF").check_length(5),
        lambda: read_window("0.2"),
    ],
)
def test_errors_say_what_was_expected(make):
    with pytest.raises(ZeusError, match="expected"):
        make()


def test_read_window():
    assert read_window("flow") == (0.14, 0.06)
    assert read_window("0.3,0.1") == (0.3, 0.1)


def test_description_counts():
    assert Plan.uniform(20, 3).describe().splitlines()[1:] == [
        "full steps     0-4, 8, 12, 16, 18-19",
        "NFE            10 of 20",
        "speed-up bound 2.00x",
    ]


def test_a_plan_says_where_it_came_from():
    plans = [Plan("FFXF"), Plan.uniform(4, 1), Plan.spread(4, 3), Plan.from_full_steps(4, [0, 1, 3])]
    assert [plan.source for plan in plans] == ["written", "uniform", "spread", "written"]
    for plan in plans:
        assert Plan.from_json(plan.to_json()).source == plan.source
        assert plan.with_predictor("reuse").with_full(2).source == plan.source
    assert Plan.spread(4, 3) == Plan("FFXF")  # the source makes no other plan of it
    for wrong in (
        lambda: Plan("FF", source="found"),
        lambda: Plan.from_json({"format": 1, "steps": "FF", "source": 1}),
    ):
        with pytest.raises(ZeusError, match="source"):
            wrong()


def test_a_plan_takes_one_predictor():
    plan = Plan("FFXF")
    assert (plan.predictor, plan.rule) == (None, Predictor())
    assert plan.with_predictor(None) is plan
    assert plan.with_predictor("reuse") == Plan("FFXF", "reuse") == Plan("FFXF", Predictor("reuse"))
    with pytest.raises(ZeusError, match="predictor: got zeus beside a calibrated plan"):
        Plan("FFXF", "reuse").with_predictor("zeus")
    with pytest.raises(ZeusError, match="expected one of zeus"):
        Plan("FFXF", "magic")


@pytest.mark.parametrize(
    ("letters", "step", "made"),
    [
        ("FFXRXRF", 3, "FFXFXRF"), ("FFXRXRF", 2, "FFFXRXF"), ("FFXRXRF", 5, "FFXRXFF"), ("FFXRXRF", 6, "FFXRXRF"),
        ("FFXRXRF", 7, "FFXRXRF"),
    ],
)  # fmt: skip
def test_a_step_is_made_full(letters, step, made):
    assert str(Plan(letters).with_full(step)) == made


def test_the_steps_of_a_table_stay_as_they_are():
    table = Predictor.from_table({step: {1: 1.0} for step in range(2, 6)})
    assert str(Plan("FFXRXRF", table).with_full(3)) == "FFXFXRF"
    assert str(Plan("FFXXXRF", table).with_full(3)) == "FFXFXRF"


def test_letters_presets_and_planners_make_plans_everywhere_the_same():
    for asked in ("turbo", Plan.uniform(20, 4), Plan.uniform(20, 4).steps, lambda length: Plan.uniform(length, 4)):
        made = choose_plan(asked, predictor="reuse")(20)
        assert made == Plan.uniform(20, 4).with_predictor("reuse")
    with pytest.raises(ZeusError, match="got str; expected a Plan from what makes it"):
        choose_plan(lambda length: "F" * length)(20)
