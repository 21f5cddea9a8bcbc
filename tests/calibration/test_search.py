"""The search: what it returns, and that what it minimises is what happens."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from toy_workload import ToyWorkload

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.prediction import predict_psnr
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import interleave, list_uniform, search
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.zeus_graph import Plan, Predictor, fold
from zeus_trt.zeus_graph.surrogate import Surrogate, list_rows, weigh_error

STEPS = 20


@pytest.fixture(scope="module", params=[FlowMatchEulerDiscreteScheduler, DPMSolverMultistepScheduler])
def recorded(request):
    workload = ToyWorkload(make_scheduler=request.param)
    return workload, workload.program(STEPS), record(workload, make_full_setting(workload, STEPS), range(4))


def as_mask(plan):
    return np.array([letter == "F" for letter in str(plan)])


def test_candidates_are_plans_that_run(recorded):
    _, program, stats = recorded
    found = search(program, stats, 8)
    assert len({str(plan) for plan in found}) > 1
    for plan in found:
        assert plan.nfe == 8
        assert str(plan).startswith("FF")
        assert plan.predictor.table
        assert fold(program, plan).nfe == 8


def test_it_is_the_same_every_time(recorded):
    _, program, stats = recorded
    first, second = (search(program, stats, 8, seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_surrogates_error_is_that_of_the_predictor_it_writes(recorded, order):
    _, program, stats = recorded
    products = stats.products.mean(0)
    surrogate = Surrogate(program, products, stats.feedback, order)
    plans = [Plan.spread(STEPS, 8), Plan.uniform(STEPS, 3), Plan.from_full_steps(STEPS, [0, 1, 5, 9, 19])]
    fit = surrogate.fit(np.stack([as_mask(plan) for plan in plans]))
    for place, plan in enumerate(plans):
        assert str(fit.plan(place)) == str(plan)
        weights = weigh_error(program, list_rows(program, fit.plan(place)), stats.feedback)
        assert fit.errors[place] == pytest.approx(weights @ products @ weights, rel=1e-3)


@pytest.mark.parametrize("others", [0, 1])
def test_plans_that_begin_alike_are_fitted_as_each_alone(recorded, others):
    _, program, stats = recorded
    generator = np.random.default_rng(0)
    full = generator.random((12, STEPS)) < 0.5
    full[:, [0, 1, -1]] = True
    full[5:8, :10], full[8] = full[4, :10], full[0]
    quantized = full & (generator.random(full.shape) < 0.3)
    parts = program, np.stack([stats.products[0], stats.products[1]]), np.stack([stats.feedback, 0 * stats.feedback]), 3
    surrogate = Surrogate(*parts, np.full(STEPS, 1e-3), [Surrogate(*parts)] * others)
    together = surrogate.fit(full, quantized)
    for place in range(len(full)):
        alone = surrogate.fit(full[place : place + 1], quantized[place : place + 1])
        assert together.errors[place] == pytest.approx(alone.errors[0], rel=1e-9)
        assert np.array_equal(together.sources[place], alone.sources[0])
        np.testing.assert_allclose(together.weights[place], alone.weights[0], atol=1e-8)


def test_fitting_beats_the_line():
    workload = ToyWorkload()
    program, stats = workload.program(STEPS), record(workload, make_full_setting(workload, STEPS), range(4))
    plan = Plan.spread(STEPS, 8)
    fitted = Surrogate(program, stats.products.mean(0), stats.feedback, 3).fit(as_mask(plan)[None]).plan(0)
    line = replace(plan, predictor=Predictor.parse("lagrange-2"))
    bench = Bench(workload, make_full_setting(workload, STEPS))
    assert bench.measure(fitted, range(9, 17)) > bench.measure(line, range(9, 17)) + 1


def test_the_winner_is_the_best_of_all_plans_where_they_can_be_listed():
    workload = ToyWorkload()
    program, stats = workload.program(9), record(workload, make_full_setting(workload, 9), range(3))
    every = [Plan.from_full_steps(9, [0, 1, *inner, 8]) for inner in combinations(range(2, 8), 2)]
    best = {}
    for order in (3, 4):
        surrogate = Surrogate(program, stats.products.mean(0), stats.feedback, order)
        masks = np.stack([as_mask(plan) for plan in every])
        masks = masks[[np.diff(np.flatnonzero(mask)).max() <= 5 for mask in masks]]
        best[order] = masks[surrogate.fit(masks).errors.argmin()]
    found = search(program, stats, 5)
    assert any(np.array_equal(as_mask(found[0]), mask) for mask in best.values())


def test_it_beats_uniform_plans_on_other_samples(recorded):
    workload, program, stats = recorded
    bench, held_out = Bench(workload, make_full_setting(workload, STEPS)), range(50, 58)
    found = max(bench.measure(plan, held_out) for plan in search(program, stats, 8)[:3])
    assert found > max(bench.measure(plan, held_out) for plan in list_uniform(STEPS, 8)) + 3


@pytest.mark.parametrize(
    "make_scheduler",
    [HeunDiscreteScheduler, PNDMScheduler, UniPCMultistepScheduler, LMSDiscreteScheduler, EulerDiscreteScheduler],
)
def test_any_linear_solver_can_be_calibrated(make_scheduler):
    workload = ToyWorkload(make_scheduler=make_scheduler)
    program, stats = workload.program(12), record(workload, make_full_setting(workload, 12), range(3))
    count = program.num_evaluations
    nfe = count // 2
    best = search(program, stats, nfe, restarts=0)[0]
    assert len(best) == count
    uniform = max(predict_psnr(program, stats, plan) for plan in list_uniform(count, nfe))
    assert predict_psnr(program, stats, best) > uniform


def test_all_full_is_a_plan(recorded):
    _, program, stats = recorded
    assert str(search(program, stats, STEPS)[0]) == "F" * STEPS
    for nfe in (3, 4, STEPS - 1):
        assert search(program, stats, nfe)[0].nfe == nfe


def test_lists_of_candidates_are_taken_in_turn_to_the_end_of_the_longest():
    first, second, third, other = (Plan.spread(STEPS, nfe) for nfe in (5, 6, 7, 8))
    assert interleave((first, second, third), (other,)) == (first, other, second, third)


@pytest.mark.parametrize("nfe", [-1, 0, 2, STEPS + 1])
def test_impossible_budgets_are_refused(recorded, nfe):
    with pytest.raises(ZeusError, match=rf"budget: got {nfe} full steps; expected 3\.\.20"):
        search(recorded[1], recorded[2], nfe)


def test_trajectories_of_another_number_of_steps_are_refused(recorded):
    with pytest.raises(ZeusError, match="20 evaluations"):
        search(recorded[0].program(10), recorded[2], 5)


def test_uniform_plans_are_told_once():
    found = list_uniform(50, 22)
    assert all(plan.nfe == 22 for plan in found)
    assert replace(Plan.uniform(50, 4), predictor=Predictor()) in found
    assert replace(Plan.spread(50, 22), predictor=Predictor()) in found
    assert len([plan for plan in found if str(plan) == str(Plan.uniform(50, 4))]) == 1  # its readings are one
