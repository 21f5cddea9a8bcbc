"""The search: what it returns, and that what it minimises is what happens."""

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
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import list_uniform, search
from zeus_trt.calibration.surrogate import Surrogate, make_rows, predict_psnr, weigh_error
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, fold

STEPS = 20


@pytest.fixture(scope="module", params=[FlowMatchEulerDiscreteScheduler, DPMSolverMultistepScheduler])
def recorded(request):
    workload = ToyWorkload(make_scheduler=request.param)
    return workload, workload.program(STEPS), record(workload, range(4), num_steps=STEPS)


def as_mask(plan):
    return np.array([letter == "F" for letter in str(plan)])


def test_candidates_are_plans_that_run(recorded):
    _, program, gram = recorded
    found = search(program, gram, 8)
    assert len({str(one.plan) for one in found}) > 1
    for one in found:
        assert one.plan.nfe == 8
        assert str(one.plan).startswith("FF")
        assert fold(program, one.plan, one.predictor).nfe == 8
        assert one.predicted_db == pytest.approx(predict_psnr(program, gram, one.plan, one.predictor))


def test_it_is_the_same_every_time(recorded):
    _, program, gram = recorded
    first, second = (search(program, gram, 8, seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_surrogates_error_is_that_of_the_predictor_it_writes(recorded, order):
    _, program, gram = recorded
    products = gram.products.mean(0)
    surrogate = Surrogate(program, products, gram.feedback, order)
    plans = [Plan.spread(STEPS, 8), Plan.uniform(STEPS, 3), Plan.from_full_steps(STEPS, [0, 1, 5, 9, 19])]
    filled = surrogate.fill(np.stack([as_mask(plan) for plan in plans]))
    for place, plan in enumerate(plans):
        weights = weigh_error(program, make_rows(program, plan, filled.predictor(place)), gram.feedback)
        assert filled.errors[place] == pytest.approx(weights @ products @ weights, rel=1e-3)


def test_fitting_beats_the_line():
    workload = ToyWorkload()
    program, gram = workload.program(STEPS), record(workload, range(4), num_steps=STEPS)
    plan = Plan.spread(STEPS, 8)
    predictor = Surrogate(program, gram.products.mean(0), gram.feedback, 3).fill(as_mask(plan)[None]).predictor(0)
    bench = Bench(workload, STEPS)
    assert bench.measure(plan, predictor, range(9, 17)) > bench.measure(plan, "lagrange-2", range(9, 17)) + 1


def test_the_winner_is_the_best_of_all_plans_where_they_can_be_listed():
    workload = ToyWorkload()
    program, gram = workload.program(9), record(workload, range(3), num_steps=9)
    every = [Plan.from_full_steps(9, [0, 1, *inner, 8]) for inner in combinations(range(2, 8), 2)]
    best = {}
    for order in (3, 4):
        surrogate = Surrogate(program, gram.products.mean(0), gram.feedback, order)
        masks = np.stack([as_mask(plan) for plan in every])
        masks = masks[[np.diff(np.flatnonzero(mask)).max() <= 5 for mask in masks]]
        best[order] = masks[surrogate.fill(masks).errors.argmin()]
    found = search(program, gram, 5)
    assert any(np.array_equal(as_mask(found[0].plan), mask) for mask in best.values())


def test_it_beats_uniform_plans_on_other_samples(recorded):
    workload, program, gram = recorded
    bench, held_out = Bench(workload, STEPS), range(50, 58)
    found = max(bench.measure(one.plan, one.predictor, held_out) for one in search(program, gram, 8)[:3])
    assert found > max(bench.measure(*choice, held_out) for choice in list_uniform(STEPS, 8)) + 3


@pytest.mark.parametrize(
    "make_scheduler",
    [HeunDiscreteScheduler, PNDMScheduler, UniPCMultistepScheduler, LMSDiscreteScheduler, EulerDiscreteScheduler],
)
def test_any_linear_solver_can_be_calibrated(make_scheduler):
    workload = ToyWorkload(make_scheduler=make_scheduler)
    program, gram = workload.program(12), record(workload, range(3), num_steps=12)
    count = program.num_evaluations
    nfe = count // 2
    best = search(program, gram, nfe, restarts=0)[0]
    assert len(best.plan) == count
    uniform = max(predict_psnr(program, gram, *choice) for choice in list_uniform(count, nfe))
    assert best.predicted_db > uniform


def test_all_full_is_a_plan(recorded):
    _, program, gram = recorded
    assert str(search(program, gram, STEPS)[0].plan) == "F" * STEPS
    for nfe in (3, 4, STEPS - 1):
        assert search(program, gram, nfe)[0].plan.nfe == nfe


@pytest.mark.parametrize("nfe", [-1, 0, 2, STEPS + 1])
def test_impossible_budgets_are_refused(recorded, nfe):
    with pytest.raises(ZeusError, match=rf"budget: got {nfe} full steps; expected 3\.\.20"):
        search(recorded[1], recorded[2], nfe)


def test_trajectories_of_another_number_of_steps_are_refused(recorded):
    with pytest.raises(ZeusError, match="20 evaluations"):
        search(recorded[0].program(10), recorded[2], 5)


def test_uniform_plans_are_told_once():
    found = list_uniform(50, 22)
    assert all(plan.nfe == 22 for plan, _ in found)
    assert (Plan.uniform(50, 4), "zeus") in found
    assert (Plan.spread(50, 22), "zeus") in found
    assert len([plan for plan, _ in found if plan == Plan.uniform(50, 4)]) == 1  # its readings are one
