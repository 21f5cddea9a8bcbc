"""Every rule is its formula to 1e-12, folded and stepped, on the solver's own float64 coefficients."""

from collections.abc import Callable

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from rule_formulas import FORMULAS, Run, fill
from solver_loops import SD, noise, run_program, toy_denoiser

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import PREDICTORS, OpenPolicy, Plan, Predictor, SolverProgram, StaticPolicy, fold, trace
from zeus_trt.zeus_graph.noise_grid import measure_program

V = {"prediction_type": "v_prediction"}
SOLVERS = {
    "flow": FlowMatchEulerDiscreteScheduler(shift=3.0),
    "ddim epsilon": DDIMScheduler(**SD, clip_sample=False),
    "ddim v_prediction": DDIMScheduler(**SD, clip_sample=False, **V),
    "euler epsilon": EulerDiscreteScheduler(**SD),
    "euler v_prediction": EulerDiscreteScheduler(**SD, **V),
    "dpm epsilon": DPMSolverMultistepScheduler(**SD),
    "unipc v_prediction": UniPCMultistepScheduler(**SD, **V),
}
PLAN = Plan("FFXRFXFXRXXFFXRXRXXF")
EXACT = 1e-12


@pytest.fixture(scope="module")
def programs():
    return {name: trace(scheduler, len(PLAN)) for name, scheduler in SOLVERS.items()}


def follow(program: SolverProgram, kind: str, predict: Callable[[Run], torch.Tensor], policy=None) -> Run:
    """The plan's run by the solver's matrices; ``predict`` fills skipped steps. The last sample is ``x[-1]``."""
    denoise = toy_denoiser()
    run = Run(PLAN, program.timesteps, program.sigmas or (), kind)
    state = (noise() * program.init_noise_sigma)[None]
    for step, (row, matrix) in enumerate(zip(program.input_rows, program.matrices, strict=True)):
        run.x.append(state[0])
        run.m.append(torch.tensordot(torch.tensor(row), state, 1))
        if policy:
            policy.see(step, state[0])
        if PLAN.is_full(step):
            run.y.append(denoise(run.m[-1], program.timesteps[step]))
            if policy:
                policy.take(step, run.y[-1])
        else:
            run.y.append(torch.as_tensor(predict(run)))
        state = torch.tensordot(torch.tensor(matrix), torch.cat([state, run.y[-1][None]]), 1)
    run.x.append(state[0])
    return run


def test_every_rule_has_a_formula():
    assert {name.partition("@")[0] for name in FORMULAS} == {*PREDICTORS}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_rule_is_its_formula_folded_and_stepped(programs, solver, name):
    program, rule = programs[solver], Predictor.parse(name)
    plan = PLAN.with_predictor(rule)
    if name == "mean-velocity" and solver not in ("flow", "euler epsilon"):
        with pytest.raises(ZeusError, match="not the slope of its sample"):
            fold(program, plan)
        return
    kind = solver.split()[-1]
    expected = follow(program, kind, lambda run: fill(name, run))
    size = max(float(one.abs().max()) for one in (*expected.x, *expected.y))
    grid = measure_program(rule, program)
    for policy in (StaticPolicy(plan, grid), OpenPolicy(plan, grid)):
        found = follow(program, kind, lambda run, policy=policy: policy.predict(len(run.y)), policy)
        for got, wanted in zip((*found.y, *found.x), (*expected.y, *expected.x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=EXACT * size)
    folded = run_program(fold(program, plan), toy_denoiser(), noise() * program.init_noise_sigma)
    torch.testing.assert_close(folded, expected.x[-1], rtol=0, atol=EXACT * size)
