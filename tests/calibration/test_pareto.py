"""The curve of quality over full steps: a budget is never worse than a cheaper one, and says whose plan it is."""

import csv
from types import SimpleNamespace

import pytest

from zeus_trt.calibration.calibrate import Samples
from zeus_trt.calibration.pareto import list_budgets, trace_pareto
from zeus_trt.evaluation.workload import Setting
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import MEAN, Measured

COUNT = 50
AFTER_THE_FIRST = dict.fromkeys(list_budgets(COUNT)[1:], 8)


class ScriptedTask:
    """A double of a task: the PSNR of every budget is given, nothing is run."""

    objective, samples, setting = MEAN, Samples(1, 1, 1), Setting(Plan("F" * COUNT), COUNT)

    def __init__(self, calibrated, uniform, preset):
        self.calibrated, self.uniform, self.preset = calibrated, uniform, preset

    def record(self):
        return None

    def bench(self):
        return SimpleNamespace(list_psnr=lambda plan, numbers: [self.preset])

    def calibrate(self, stats, bench, nfe):
        plan = Plan("F" * (nfe - 1) + "X" * (COUNT - nfe) + "F")
        return SimpleNamespace(
            chosen=Measured(plan, self.calibrated.get(nfe, float(nfe))),
            uniform=(Measured(plan, self.uniform.get(nfe, nfe - 5.0)),),
        )


@pytest.mark.parametrize(
    ("calibrated", "uniform", "preset", "taken", "taken_uniform"),
    [
        ({}, {}, 0.0, {}, {}),
        ({27: 60.0}, {}, 0.0, {31: 27, 39: 27, 49: 27}, {}),  # one budget is good, two after it are worse
        ({27: 60.0, 31: 60.0}, {}, 0.0, {31: 27, 39: 27, 49: 27}, {}),  # equal: the cheaper one
        ({}, {27: 24.0, 31: 10.0}, 0.0, {}, {31: 27}),
        ({8: 99.0}, {8: 98.0}, 0.0, AFTER_THE_FIRST, AFTER_THE_FIRST),
        ({}, {}, 30.0, {24: 22, 25: 22, 27: 22}, {24: 22, 25: 22, 27: 22, 31: 22}),  # a preset beats its budget's plans
    ],
)
def test_no_budget_is_worse_than_a_cheaper_one(tmp_path, calibrated, uniform, preset, taken, taken_uniform):
    curve = trace_pareto(ScriptedTask(calibrated, uniform, preset))
    points = {point.nfe: point for point in curve.points}
    for name in ("calibrated_db", "uniform_db"):
        values = [getattr(point, name) for point in curve.points]
        assert values == sorted(values)
    assert {nfe: point.plan_nfe for nfe, point in points.items() if point.plan_nfe != nfe} == taken
    assert {nfe: point.uniform_nfe for nfe, point in points.items() if point.uniform_nfe != nfe} == taken_uniform
    for point in curve.points:
        assert point.plan.count("F") == point.plan_nfe
        assert point.speedup_bound == COUNT / point.plan_nfe
        assert point.calibrated_db >= point.uniform_db
        assert point.calibrated_db == points[point.plan_nfe].calibrated_db
    curve.save(tmp_path / "curve.csv")
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [int(row["plan_nfe"]) for row in rows] == [point.plan_nfe for point in curve.points]
    lines = curve.describe().splitlines()
    assert all(len(line) <= 80 for line in lines)
    for nfe, own in taken.items():
        assert f" dB ({own})" in next(line for line in lines if line.startswith(f"{nfe:>3} "))
