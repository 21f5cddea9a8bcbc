"""Plans of two engines: what the search returns, what it prices, and that its predictions come true."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_workload import SHAPE, ToyWorkload, curved

from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.goals import Goal, reach
from zeus_trt.calibration.mixed_search import list_counts, search_mixed
from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.record import record
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.runtime import EnginePair, draw_noise
from zeus_trt.runtime.calls import ModelCall
from zeus_trt.runtime.loop import start_stepper
from zeus_trt.zeus_graph import Plan, fold
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.surrogate import Surrogate

STEPS = 20


class TwoEngines(ToyWorkload):
    """The toy, and a double of a quantized engine: the toy plus an error of a given size that no input explains."""

    def __init__(self, error, **options):
        super().__init__(**options)
        self.error = error

    def coarse(self, sample, timestep, guidance):
        generator = torch.Generator().manual_seed(int(timestep[0]))
        noise = torch.randn((1, *SHAPE), generator=generator).sign() * torch.cos(50 * sample).sign()
        return curved(sample, timestep, guidance) + self.error * noise

    def make_engine(self):
        return EnginePair(self.count(self.denoiser), self.count(self.coarse))

    def compare(self, setting, numbers):
        noise = draw_noise((len(numbers), *SHAPE), [self.seed + number for number in numbers])
        stepper = start_stepper(self.make_scheduler(), noise, setting.full.plan, setting.num_steps)
        pair = self.make_engine()
        full_model, quantized_model = (ModelCall(engine, stepper) for engine in (pair.full, pair.quantized))
        while call := stepper.call:
            yield (full := full_model(*call)), quantized_model(*call)
            stepper.feed(full)


def record_two(error):
    workload = TwoEngines(error)
    setting = make_full_setting(workload, STEPS)
    return workload, workload.program(STEPS), record(workload, setting, range(4), quantized=True)


@pytest.fixture(scope="module")
def recorded():
    return record_two(0.01)


def test_a_budget_is_spent_in_every_way():
    assert list_counts(50, 4, 0.5) == [(0, 8), (1, 6), (2, 4), (3, 2), (4, 0)]
    assert list_counts(50, 2, 0.55) == [(0, 3)]
    assert list_counts(10, 9.5, 0.9)[-1] == (9, 0)
    assert all(full + quantized < 10 for full, quantized in list_counts(10, 9.5, 0.9))


@pytest.mark.parametrize(("budget", "cost", "named"), [(1, 0.5, "budget"), (8, 1.2, "quantized cost"), (8, 0, "cost")])
def test_impossible_budgets_and_costs_are_refused(budget, cost, named):
    with pytest.raises(ZeusError, match=f"{named}: got"):
        list_counts(20, budget, cost)


def test_candidates_meet_the_budget_and_run(recorded):
    _, program, stats = recorded
    found = search_mixed(program, stats, 6.5, 0.5)
    assert found == search_mixed(program, stats, 6.5, 0.5)
    for plan in found:
        assert 6.0 < plan.cost(0.5) <= 6.5
        assert plan.predictor.table or plan.nfe == STEPS
        assert fold(program, plan).nfe == plan.nfe


def test_the_surrogates_error_is_that_of_the_plan_it_writes(recorded):
    _, program, stats = recorded
    full = np.array([letter in "FQ" for letter in "FQXRQXRFXRQXRFQXRFFQ"])
    quantized = np.array([letter == "Q" for letter in "FQXRQXRFXRQXRFQXRFFQ"])
    fit = Surrogate(program, stats.products.mean(0), stats.feedback, 3, stats.noise.mean(0)).fit(
        full[None], quantized[None]
    )
    plan = fit.plan(0)
    assert plan.steps == "FQXRQXRFXRQXRFQXRFFQ"
    assert predict_errors(program, stats, plan).mean() == pytest.approx(fit.errors[0], rel=1e-6)
    assert predict_errors(program, stats, plan.with_quantized(())).mean() < 0.8 * fit.errors[0]


@pytest.mark.parametrize("letters", ["Q" * STEPS, "FQ" * (STEPS // 2), "F" * 10 + "QXR" * 3 + "Q"])
def test_the_noise_is_as_large_as_predicted(recorded, letters):
    workload, program, stats = recorded
    plan = Plan(letters)
    setting = make_full_setting(workload, STEPS)
    runs = (replace(setting, plan=one) for one in (plan.with_quantized(()), plan))
    exact, mixed = (workload.run(one, range(4)).latents for one in runs)
    measured = (mixed - exact).square().flatten(1).mean(1)
    predicted = predict_errors(program, stats, plan) - predict_errors(program, stats, plan.with_quantized(()))
    assert float(measured.mean()) == pytest.approx(predicted.mean(), rel=0.3)


@pytest.mark.parametrize(("error", "letters"), [(0.0, "Q"), (3.0, "F")])
def test_only_engines_that_are_worth_their_cost_are_used(error, letters):
    _, program, stats = record_two(error)
    plan = search_mixed(program, stats, 6, 0.5)[0]
    assert {*plan.steps} & {*"FQ"} == {letters}


def test_errors_are_recorded_at_the_same_inputs(recorded, tmp_path):
    _, _, stats = recorded
    np.testing.assert_allclose(stats.noise, 0.01**2, rtol=1e-3)
    assert stats.calls == 4 * (STEPS + 9 + 6 + 2 * STEPS)
    stats.save(tmp_path / "kept.npz")
    again = TrajectoryStats.load(tmp_path / "kept.npz")
    assert np.array_equal(again.noise, stats.noise)
    assert np.array_equal(again.extend(stats).select([0]).noise, stats.noise[:1])


def test_trajectories_without_the_quantized_engine_are_refused():
    workload = ToyWorkload()
    stats = record(workload, make_full_setting(workload, STEPS), range(2))
    assert stats.noise is None
    with pytest.raises(ZeusError, match="got none of a quantized engine"):
        search_mixed(workload.program(STEPS), stats, 6, 0.5)


def test_calibration_spends_a_cost(tmp_path):
    workload = TwoEngines(0.005)
    task = Task(workload, make_full_setting(workload, STEPS), Samples(4, 4, 4), quantized_cost=0.5)
    found = reach(task, Goal(speedup=20 / 6.5))
    assert found.quantized_cost == 0.5
    assert found.chosen.plan.cost(0.5) <= 6.5
    assert "a quantized one counts 0.5" in found.describe()
    found.save(tmp_path / "plan.json")
    assert CalibratedPlan.load(tmp_path / "plan.json") == found
