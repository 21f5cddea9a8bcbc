"""Calibration from end to end on toy denoisers: what is chosen, what is written, what is refused."""

import json
import math
from dataclasses import replace

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from toy_workload import ToyWorkload

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.goals import Goal, check_plan, nfe_for_speedup, reach
from zeus_trt.calibration.pareto import list_budgets, trace_pareto
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan

SAMPLES = Samples(4, 4, 8)


def make_task(workload=None, num_steps=20, samples=SAMPLES, **changes):
    return Task(workload := workload or ToyWorkload(), make_full_setting(workload, num_steps), samples, **changes)


@pytest.fixture(scope="module")
def task():
    return make_task()


@pytest.fixture(scope="module")
def found(task):
    return reach(task, Goal(nfe=8))


def check(plan, workload=None, num_steps=20):
    workload = workload or ToyWorkload()
    return plan.check(workload.describe(), num_steps, workload.program(num_steps).fingerprint)


def test_the_calibrated_plan_beats_uniform_ones(found):
    assert found.calibrated
    assert found.chosen.plan.nfe == 8
    assert found.chosen.psnr_db > found.uniform[0].psnr_db + 3
    assert all(one.plan.nfe == 8 for one in found.uniform)
    assert [one.psnr_db for one in found.uniform] == sorted((one.psnr_db for one in found.uniform), reverse=True)
    assert abs(found.predicted_db - found.chosen.psnr_db) < 10
    assert "dB to the best uniform plan" in found.describe()


def test_it_says_what_it_was_made_from(found, task):
    assert found.workload == task.workload.describe()
    assert found.fingerprint == task.workload.program(20).fingerprint
    assert found.numbers == {"trajectories": (0, 4), "validation": (4, 4), "held_out": (8, 8)}
    assert found.calls["recording"] == 4 * (20 + 9 + 6)


def test_calls_are_those_of_the_model():
    workload, told = ToyWorkload(), []
    found = reach(make_task(workload, on_calls=told.append), Goal(nfe=8))
    assert sum(found.calls.values()) == workload.calls == sum(told)


def test_it_is_the_same_every_time(found):
    assert reach(make_task(), Goal(nfe=8)) == found
    assert reach(make_task(batch=3), Goal(nfe=8)).chosen.plan == found.chosen.plan


def test_held_out_samples_choose_nothing(found):
    """Another set of held-out samples: the same plan, another figure."""
    more = reach(make_task(samples=Samples(4, 4, 12)), Goal(nfe=8))
    assert more.chosen.plan == found.chosen.plan
    assert more.chosen.psnr_db != found.chosen.psnr_db


def test_uniform_is_kept_where_calibration_does_not_beat_it(task, monkeypatch):
    list_psnr = Bench.list_psnr

    def worse(self, plan, numbers):
        fitted = plan.predictor is not None and plan.predictor.table is not None
        return [value - 60 * fitted for value in list_psnr(self, plan, numbers)]

    monkeypatch.setattr(Bench, "list_psnr", worse)
    kept = reach(task, Goal(nfe=8))
    assert not kept.calibrated
    assert kept.chosen == kept.uniform[0]
    assert "did not beat" in kept.describe()


def test_a_file_gives_the_plan_back(found, tmp_path):
    found.save(tmp_path / "plan.json")
    assert CalibratedPlan.load(tmp_path / "plan.json") == found


def test_damaged_files_are_refused(found, tmp_path):
    path = tmp_path / "plan.json"
    found.save(path)
    data = json.loads(path.read_text())
    for damage in ({"num_steps": 19}, {"plan": "FXF"}, {"psnr_db": 99.0}, {"chosen": 1}):
        path.write_text(json.dumps({**data, **damage}))
        with pytest.raises(ZeusError, match=r"damaged|does not fit"):
            CalibratedPlan.load(path)
    for text, said in (("{", "no strict JSON"), ("[]", "format"), (json.dumps({**data, "format": 9}), "format 9")):
        path.write_text(text)
        with pytest.raises(ZeusError, match=said):
            CalibratedPlan.load(path)
    with pytest.raises(ZeusError, match="No such file"):
        CalibratedPlan.load(tmp_path / "none.json")


def test_another_solver_length_or_model_is_refused_and_guidance_is_told(found):
    assert check(found) is found
    with pytest.raises(ZeusError, match="num_steps 20; expected 10"):
        check(found, num_steps=10)
    with pytest.raises(ZeusError, match="solver"):
        check(found, ToyWorkload(make_scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=3.0)))
    with pytest.raises(ZeusError, match="model weights"):
        check(replace(found, workload={"weights_sha256": "cd" * 32}))
    assert found.list_differences(ToyWorkload().describe(), "onnxruntime") == []
    (told,) = found.list_differences(ToyWorkload(guidance=4.0).describe(), "onnxruntime")
    assert "guidance_scale 1.0, and runs with 4.0" in told
    (told,) = found.list_differences(ToyWorkload().describe(), "tensorrt")
    assert "backend onnxruntime" in told


def test_check_measures_on_samples_that_calibration_never_saw(found, task):
    seen = []

    class Watched(Bench):
        def list_psnr(self, plan, numbers):
            seen.extend(numbers)
            return super().list_psnr(plan, numbers)

    class WatchedTask(Task):
        def bench(self):
            return Watched(self.workload, self.setting)

    checked = check_plan(WatchedTask(task.workload, task.setting, SAMPLES), found)
    assert set(seen) == set(range(16, 24))
    assert checked.chosen.plan == found.chosen.plan
    assert checked.chosen.psnr_db == pytest.approx(found.chosen.psnr_db, abs=5)
    assert checked.chosen.psnr_db > checked.uniform[0].psnr_db


def test_a_plan_of_one_guidance_is_worse_at_another_than_the_one_made_there(found):
    """What transfer costs: at another guidance the plan runs, but the one calibrated there is better."""
    there = make_task(ToyWorkload(guidance=2.0))
    carried = check_plan(there, found)
    native = reach(there, Goal(nfe=8))
    assert carried.chosen.psnr_db < native.chosen.psnr_db - 1


def test_a_quality_is_a_number():
    with pytest.raises(ZeusError, match="min_psnr: got nan"):
        Goal(min_psnr=math.nan)


def test_a_quality_is_reached_with_the_fewest_full_steps(task):
    found = reach(task, Goal(min_psnr=45.0))
    assert found.chosen.psnr_db >= 45.0
    assert reach(task, Goal(nfe=found.chosen.plan.nfe - 1)).chosen.psnr_db < 45.0


def test_a_quality_that_no_plan_reaches_is_refused_with_the_best():
    with pytest.raises(ZeusError, match=r"min_psnr: got 500 dB, which no plan reached; expected at most [\d.]+ dB"):
        reach(make_task(num_steps=8, samples=Samples(2, 2, 2)), Goal(min_psnr=500.0))


def test_impossible_goals_are_refused_before_any_call():
    workload = ToyWorkload()
    for goal, said in (
        (Goal(nfe=2), "budget: got 2"),
        (Goal(nfe=21), "budget: got 21"),
        (Goal(speedup=7.0), "speedup: got 7"),
        (Goal(speedup=0.5), "speedup: got 0.5"),
    ):
        with pytest.raises(ZeusError, match=said):
            reach(make_task(workload), goal)
    for wrong in ({}, {"nfe": 8, "speedup": 2.0}):
        with pytest.raises(ZeusError, match="goal: got"):
            Goal(**wrong)
    with pytest.raises(ZeusError, match="samples"):
        Samples(0, 1, 1)
    assert workload.calls == 0


def test_speedup_is_a_bound():
    assert [nfe_for_speedup(50, speedup) for speedup in (1, 2, 2.5, 2.51, 50 / 3)] == [50, 25, 20, 19, 3]


def test_max_calls_is_kept(task):
    stats = task.record()
    for limit in (950, 1000, 10_000):
        bench = Bench(task.workload, task.setting)
        found = replace(task, max_calls=limit).calibrate(stats, bench, 8)
        assert found.calls["measuring"] == bench.calls <= limit
    with pytest.raises(ZeusError, match="max_calls: got 100; expected at least"):
        replace(task, max_calls=100).calibrate(stats, task.bench(), 8)


def test_pareto(tmp_path):
    curve = trace_pareto(make_task(num_steps=12, samples=Samples(2, 2, 2)))
    counts = [point.nfe for point in curve.points]
    assert counts == sorted(counts) == list(list_budgets(12))
    for ratio in (2, 3, 4):
        assert Plan.uniform(12, ratio).nfe in counts
    assert all(point.calibrated_db >= point.uniform_db for point in curve.points)
    assert {point.preset for point in curve.points} >= {"medium"}
    curve.save(tmp_path / "curve.json")
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0] == "nfe,speedup_bound,calibrated_db,uniform_db,preset,preset_db,plan,plan_nfe,uniform_nfe"
    assert len(lines) == len(counts) + 1
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert "(medium)" in curve.describe()


def test_budgets_of_fifty_steps():
    budgets = list_budgets(50)
    assert (budgets[0], budgets[-1]) == (8, 49)
    assert {22, 24, 27} <= set(budgets)
