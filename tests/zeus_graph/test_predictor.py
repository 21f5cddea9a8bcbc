"""Predictors: the rows of every rule, written out."""

import pytest

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import PREDICTORS, Plan, Predictor
from zeus_trt.zeus_graph.sample_rules import SAMPLE_RULES

#                 0123456789
PLAN = Plan("FFXRXFXRXF")


def rows(name, plan=PLAN, grid=None):
    return dict(enumerate(Predictor.parse(name).rows(plan, grid)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zeus", {2: {1: 2, 0: -1}, 3: {1: 1}, 4: {1: 2, 0: -1}, 6: {5: 2, 1: -1}, 7: {5: 1}, 8: {5: 2, 1: -1}}),
        ("zeus-paper", {2: {1: 2, 0: -1}, 3: {1: 1}, 4: {1: 2, 0: -1}, 6: {5: 2, 4: -1}, 7: {5: 1}, 8: {5: 2, 4: -1}}),
        ("zeus-previous-full", {2: {1: 2, 0: -1}, 3: {1: 1}, 6: {5: 2, 1: -1}, 8: {5: 2, 1: -1}}),
        ("reuse", {2: {1: 1}, 3: {1: 1}, 4: {1: 1}, 6: {5: 1}}),
        ("extrapolate", {2: {1: 2, 0: -1}, 3: {1: 3, 0: -2}, 4: {1: 4, 0: -3}, 7: {5: 3, 4: -2}}),
        ("lagrange-2", {2: {0: -1, 1: 2}, 6: {1: -0.25, 5: 1.25}}),
        ("lagrange-3", {2: {0: -1, 1: 2}, 6: {0: 1.0, 1: -1.5, 5: 1.5}}),
    ],
)
def test_rows(name, expected):
    got = rows(name)
    assert all(got[full] is None for full in PLAN.full_steps)
    for step, row in expected.items():
        assert got[step] == pytest.approx(row)


def test_zeus_reads_the_output_before_after_one_skip():
    plan = Plan("FFXFXF")
    assert rows("zeus", plan)[4] == {3: 2, 2: -1}
    assert rows("zeus-previous-full", plan)[4] == {3: 2, 1: -1}


def test_linear_grid_is_the_paper_on_a_uniform_grid():
    assert rows("linear-grid@index") == rows("zeus-paper")


def test_linear_grid_uses_the_spacing():
    assert rows("linear-grid@sigma", Plan("FFXF"), [10.0, 6.0, 4.0, 0.0])[2] == {1: 1.5, 0: -0.5}


@pytest.mark.parametrize("name", sorted({*PREDICTORS} - {"chebyshev", *SAMPLE_RULES}))  # a ridge shrinks what it fits
def test_weights_sum_to_one(name):
    grid = [float(50 - i) ** 1.5 for i in range(50)]
    for row in Predictor.parse(name).rows(Plan.uniform(50, 3), grid):
        assert row is None or sum(row.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", [*PREDICTORS, "lagrange-3@sigma", "linear-grid@index"])
def test_names_and_json_round_trip(name):
    predictor = Predictor.parse(name)
    assert Predictor.parse(str(predictor)) == predictor
    assert Predictor.from_json(predictor.to_json()) == predictor


def test_table():
    table = Predictor.from_table({2: {0: 0.5, 1: 0.5}})
    plan = Plan("FFXF")
    assert table.rows(plan)[2] == {0: 0.5, 1: 0.5}
    assert Predictor.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    ("predictor", "plan", "grid", "reason"),
    [
        ("zoos", PLAN, None, "expected one of zeus"),
        ("zeus@sigma", PLAN, None, "expected one of zeus"),
        ("lagrange-3@time", PLAN, None, "expected one of zeus"),
        ("lagrange-5", PLAN, None, "expected one of zeus"),
        ("extrapolate", Plan("FRF"), None, "expected two"),
        ("lagrange-3@sigma", PLAN, None, "got 0 sigmas"),
        ("lagrange-2@timestep", PLAN, [1.0] * 10, "equal abscissae"),
        ("linear-grid", PLAN, [1.0] * 10, "equal abscissae"),
        (Predictor.from_table({}), PLAN, None, "no row for the skipped step 2"),
        (Predictor.from_table({2: {}}), Plan("FFXF"), None, "no row for the skipped step 2"),
        (Predictor.from_table({2: {1: 1.0}, 3: {2: 1.0}}), Plan("FFRRF"), None, "earlier full steps"),
    ],
)
def test_errors(predictor, plan, grid, reason):
    with pytest.raises(ZeusError, match=reason):
        Predictor.parse(predictor).rows(plan, grid)


@pytest.mark.parametrize("data", [{}, {"name": "table"}, {"name": "table", "rows": [1]}, {"name": "q"}, []])
def test_json_that_does_not_fit_is_refused(data):
    with pytest.raises(ZeusError, match="expected"):
        Predictor.from_json(data)
