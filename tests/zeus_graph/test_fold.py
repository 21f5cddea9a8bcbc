import functools
import re

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from solver_loops import FLOAT32, SOLVERS, noise, relative_error, run_program, run_steps, toy_denoiser

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import PREDICTORS, Plan, Predictor
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.noise_grid import measure_program
from zeus_trt.zeus_graph.trace import trace

DENOISE = toy_denoiser()
FEW = ("Euler", "dpmsolver++ 2 midpoint multistep", "UniPC to zero 2", "Heun", "FlowMatch Euler", "IPNDM")
ALL_PREDICTORS = [
    *PREDICTORS,
    *(f"{name}@{x}" for name in ("linear-grid", "lagrange-3") for x in ("index", "timestep", "sigma")),
]

# Chained extrapolation diverges and multiplies the rounding of float32 casts: 1.0e-5 measured at r = 4 and 50 steps,
# 2.5e-6 with the third order at 20.
CHAINED_SLACK = {("extrapolate", 50): 20.0, ("local-2", 50): 20.0, ("local-3", 20): 5.0}


@functools.cache
def traced(name, num_steps):
    return trace(SOLVERS[name][0](), num_steps)


def compare(name, num_steps, plan, predictor="zeus"):
    """Asserts that program mode equals step mode, or that both refuse the predictor; returns the program."""
    make, tolerance = SOLVERS[name]
    if tolerance == FLOAT32:
        tolerance *= CHAINED_SLACK.get((str(predictor), num_steps), 1.0)
    solver = traced(name, num_steps)
    rule = Predictor.parse(predictor)
    start = noise() * solver.init_noise_sigma
    try:
        program = fold(solver, plan.with_predictor(predictor))
    except ZeusError as refusal:
        with pytest.raises(ZeusError, match=re.escape(str(refusal))):
            run_steps(make(), num_steps, DENOISE, start, plan, rule, measure_program(rule, solver))
        return None
    expected = run_steps(make(), num_steps, DENOISE, start, plan, rule, measure_program(rule, solver))
    error = relative_error(run_program(program, DENOISE, start), expected)
    assert error < tolerance, f"{name}, {num_steps} steps, {plan}, {predictor}: {error:.1e}"
    return program


@pytest.mark.parametrize("num_steps", [10, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 20, 50))])
@pytest.mark.parametrize("name", SOLVERS)
def test_program_mode_equals_step_mode(name, num_steps):
    evaluations = traced(name, num_steps).num_evaluations
    for ratio in (0, 1, 2, 3, 4):
        program = compare(name, num_steps, Plan.uniform(evaluations, ratio))
        assert program.num_latents <= traced(name, num_steps).num_latents + (ratio > 0)


@pytest.mark.parametrize("predictor", ALL_PREDICTORS)
@pytest.mark.parametrize("name", FEW)
def test_program_mode_equals_step_mode_for_every_predictor(name, predictor):
    for ratio in (1, 2, 3, 4):
        compare(name, 10, Plan.uniform(traced(name, 10).num_evaluations, ratio), predictor)


@pytest.mark.slow
@pytest.mark.parametrize("predictor", ALL_PREDICTORS)
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_with_every_predictor(name, predictor):
    for num_steps in (4, 10, 20) if predictor == "local-3" else (4, 10, 20, 50):  # it reaches 1e6 at 50, rounding too
        evaluations = traced(name, num_steps).num_evaluations
        for ratio in (1, 2, 3, 4):
            compare(name, num_steps, Plan.uniform(evaluations, ratio), predictor)


@pytest.mark.parametrize("name", FEW)
def test_a_table_folds_too(name):
    plan = Plan.uniform(traced(name, 10).num_evaluations, 3)
    rows = Predictor("lagrange-4").rows(plan)
    compare(name, 10, plan, Predictor.from_table({step: row for step, row in enumerate(rows) if row is not None}))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    name=st.sampled_from(FEW),
    predictor=st.sampled_from(ALL_PREDICTORS),
    letters=st.text("FXR", min_size=19, max_size=19),
    num_steps=st.integers(3, 10),
)
def test_any_valid_plan_folds(name, predictor, letters, num_steps):
    evaluations = traced(name, num_steps).num_evaluations
    try:
        plan = Plan("F" + letters[: evaluations - 2] + "F")
    except ZeusError:
        assume(False)
    compare(name, num_steps, plan, predictor)


def test_short_and_all_full_plans():
    assert compare("Euler", 1, Plan("F")).num_latents == 1
    assert compare("Euler", 2, Plan("FF")).nfe == 2
    program = fold(traced("Euler", 4), Plan("FFXF"))
    assert program.steps == (0, 1, 3)
    assert [matrix.shape for matrix in program.matrices] == [(3, 2), (2, 3), (1, 2)]


@pytest.mark.parametrize("num_steps", [10, 20, 50, 100])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4])
def test_the_state_is_minimal_and_does_not_depend_on_steps_or_ratio(num_steps, ratio):
    plan = Plan.uniform(num_steps, ratio)
    for name, latents in (("Euler", 2), ("FlowMatch Euler", 2), ("DDIM", 2), ("dpmsolver++ 2 midpoint multistep", 3)):
        assert fold(traced(name, num_steps), plan).num_latents == latents, name
        assert fold(traced(name, num_steps), plan.with_predictor("reuse")).num_latents == latents - 1, name


@pytest.mark.parametrize("name", SOLVERS)
def test_float32_costs_only_rounding(name):
    """Coefficients stay small, so a float32 runtime is as exact as float32 is."""
    solver = traced(name, 20)
    program = fold(solver, Plan.uniform(solver.num_evaluations, 3))
    start = noise() * solver.init_noise_sigma
    expected = run_program(program, DENOISE, start)
    state, model_input = start.float()[None], (program.first_input * start).float()
    for t, matrix in zip(program.timesteps, program.matrices, strict=True):
        output = DENOISE(model_input.double(), t).float()
        rows = torch.tensordot(torch.tensor(matrix, dtype=torch.float32), torch.cat([state, output[None]]), 1)
        state, model_input = rows[:-1], rows[-1]
    assert relative_error(model_input.double(), expected) < 2 * FLOAT32


def test_refusals_say_why():
    solver = traced("Euler", 10)
    with pytest.raises(ZeusError, match="got 9 steps; expected 10"):
        fold(solver, Plan("F" * 9))
    with pytest.raises(ZeusError, match="predictor: got 'nonsense'"):
        fold(solver, Plan("F" * 10).with_predictor("nonsense"))
    with pytest.raises(ZeusError, match="sigmas; expected"):
        fold(traced("IPNDM", 10), Plan("FFFXFXFXFF").with_predictor("lagrange-2@sigma"))
