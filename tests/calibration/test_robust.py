"""Plans that serve several solvers, that go by the worst tenth, and that are cheaper than their budget."""

import math
from dataclasses import replace

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, HeunDiscreteScheduler
from toy_workload import ToyWorkload

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples, Task, measure, screen
from zeus_trt.calibration.goals import Goal, check_plan, reach
from zeus_trt.calibration.objective import average, weigh_errors
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import WORST_DECILE, CalibratedPlan
from zeus_trt.zeus_graph.surrogate import Surrogate

STEPS, SAMPLES = 12, Samples(4, 4, 8)
SHIFTED = {"default": 1.0, "shifted": 4.0}


class Solvers(ToyWorkload):
    """Runs the solver that is asked for."""

    def program(self, num_steps, solver="default"):
        self.make_scheduler = (
            HeunDiscreteScheduler
            if solver == "heun"
            else lambda: FlowMatchEulerDiscreteScheduler(shift=SHIFTED[solver])
        )
        return super().program(num_steps)

    def count_evaluations(self, num_steps, solver="default"):
        return self.program(num_steps, solver).num_evaluations

    def run(self, setting, numbers, on_step=None):
        self.program(setting.num_steps, setting.solver)
        return super().run(setting, numbers, on_step)


def make_task(solver="default", **changes):
    workload = Solvers()
    return Task(workload, make_full_setting(workload, STEPS, solver), SAMPLES, **changes)


@pytest.fixture(scope="module")
def found():
    return reach(make_task(solvers=("default", "shifted")), Goal(nfe=5))


def test_a_plan_of_several_solvers_is_for_each_of_them(found, tmp_path):
    workload = Solvers()
    for name in SHIFTED:
        assert found.check(workload.describe(), STEPS, workload.program(STEPS, name).fingerprint) is found
        assert f"\n{name:<15}{found.solvers[name].psnr_db:.1f} dB" in found.describe()
    assert [one.psnr_db for one in found.solvers.values()] != [found.chosen.psnr_db] * 2
    assert np.mean([one.psnr_db for one in found.solvers.values()]) == pytest.approx(found.chosen.psnr_db)
    found.save(tmp_path / "plan.json")
    assert CalibratedPlan.load(tmp_path / "plan.json") == found


def test_the_solver_that_is_worst_off_has_more_of_it_than_of_the_others_plan(found):
    """What each solver's own plan is worth for the other, beside the plan of both."""
    alone = reach(make_task(), Goal(nfe=5))
    there = make_task("shifted").bench()
    numbers = range(16, 24)
    assert there.measure(found.chosen.plan, numbers) > there.measure(alone.chosen.plan, numbers) + 1


def test_check_measures_the_solvers_that_are_asked_for(found):
    both = check_plan(make_task(solvers=("default", "shifted")), found)
    one = check_plan(make_task("shifted"), found)
    assert set(both.solvers) == set(SHIFTED)
    assert (one.solver, one.solvers) == ("shifted", {})
    assert one.fingerprint == found.solvers["shifted"].fingerprint


def test_the_same_solver_twice_changes_no_weight():
    task = make_task()
    (stats,), (program,) = task.record(), task.programs.values()
    part = program, stats.products.mean(0), stats.feedback, 3
    full = np.array([[letter == "F" for letter in str(Plan.spread(STEPS, 5))]])
    alone, twice = (Surrogate(*part, others=others).fit(full) for others in ((), (Surrogate(*part),)))
    np.testing.assert_allclose(twice.weights, alone.weights, rtol=1e-9)
    np.testing.assert_allclose(twice.errors, alone.errors, rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"solvers": ("default", "heun")}, "solver: got default with 12 evaluations, heun with 23 evaluations"),
        ({"solvers": ("default", "shifted"), "quantized_cost": 0.5}, "cost: got it with several solvers"),
        ({"solvers": tuple(SHIFTED), "samples": Samples(4, 1, 4)}, "expected 2 at least of each"),
        ({"objective": "best"}, "objective: got best; expected mean or worst-decile"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes, said):
    with pytest.raises(ZeusError, match=said):
        replace(make_task(), **changes)


def test_the_worst_tenth_is_rounded_up_and_leaves_equal_pictures_out():
    assert average([40.0, 60.0, math.inf]) == 50.0
    assert average([40.0, 60.0, math.inf], WORST_DECILE) == 40.0
    assert average([*range(30, 50)], WORST_DECILE) == 30.5
    assert average([math.inf] * 3, WORST_DECILE) == math.inf
    errors = np.array([1.0, 4.0, 2.0, 8.0])
    np.testing.assert_allclose(weigh_errors(errors), 1 / errors)
    np.testing.assert_allclose(weigh_errors(errors, WORST_DECILE), [0, 0.25, 0, 0.125])


@pytest.mark.parametrize(("objective", "place"), [("mean", 0), (WORST_DECILE, 1)])
def test_the_objective_chooses(objective, place):
    plans = [Plan("FFXF"), Plan("FRFF")]
    known = {str(plans[0]): [60.0] * 7 + [20.0], str(plans[1]): [50.0] * 7 + [40.0]}

    class Scripted(Bench):
        def list_psnr(self, plan, numbers):
            return [known[str(plan)][number] for number in numbers]

    task = make_task()
    bench = Scripted(task.workload, task.setting, objective=objective)
    best = screen(bench, plans, range(8))[0]
    assert best == plans[place]
    one = measure(bench, plans[0], range(8))
    assert (one.psnr_db, one.worst_db) == (55.0, 20.0)


def test_a_budget_takes_the_better_cheaper_plan_and_says_so(monkeypatch, tmp_path):
    list_psnr = Bench.list_psnr

    def favour(self, plan, numbers):
        return [value + 20 * (plan.nfe == 7) for value in list_psnr(self, plan, numbers)]

    monkeypatch.setattr(Bench, "list_psnr", favour)
    found = reach(make_task(), Goal(nfe=8))
    assert (found.budget, found.chosen.plan.nfe) == (8, 7)
    assert all(one.plan.nfe == 8 for one in found.uniform)
    assert "budget         8 full steps: this plan of 7 did better, and takes their place" in found.describe()
    found.save(tmp_path / "plan.json")
    assert CalibratedPlan.load(tmp_path / "plan.json") == found
    assert reach(make_task(), Goal(nfe=7)).budget is None
