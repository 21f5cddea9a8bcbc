"""Published rules: each row against its formula written out, and folded against stepped."""

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler
from diffusers import DPMSolverMultistepScheduler as DPMSolver
from rule_formulas import FORMULAS, OVER_OUTPUTS, Run, fill
from solver_loops import SD, noise, relative_error, run_program, run_steps, toy_denoiser

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import run_steps as run_loop
from zeus_trt.zeus_graph import OpenPolicy, Plan, Predictor, StaticPolicy, fold, trace
from zeus_trt.zeus_graph.noise_grid import measure_program, measure_scheduler
from zeus_trt.zeus_graph.row_table import Sample

PLANS = [Plan.uniform(20, ratio) for ratio in (1, 2, 3, 4)] + [Plan("FFXRFXFXRXXFFXRXRXXF")]
FULL = [0, 1, 4, 6, 11, 12, 19]  # of the last


def use(plan, formula, computed):
    """The outputs used, where ``formula`` fills a skipped step from: the outputs used, full steps, the step."""
    used = []
    for step in range(len(plan)):
        full = [i for i in plan.full_steps if i < step]
        used.append(computed[step] if plan.is_full(step) else formula(used, full, step))
    return np.array(used)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", OVER_OUTPUTS)
def test_rows_over_outputs_are_the_formula(name, plan):
    computed = np.random.default_rng(0).standard_normal((20, 3))
    time, sigma = 999.0 - 50 * np.arange(20), np.linspace(1, 0.1, 20) ** 2
    grid = {"sigma": sigma, "timestep": time}.get(name.partition("@")[2])
    run = Run(plan, time, sigma)
    for step in range(20):
        run.y.append(computed[step] if plan.is_full(step) else fill(name, run))
    expected = np.array(run.y)
    rows = Predictor.parse(name).rows(plan, grid)
    by_rows = use(plan, lambda y, full, i: sum(w * y[k] for k, w in rows[i].items()), computed)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(by_rows, expected, rtol=0, atol=1e-12 * scale)
    for policy in (StaticPolicy(plan.with_predictor(name), grid), OpenPolicy(plan.with_predictor(name), grid)):
        stepped = []
        for step, output in enumerate(torch.from_numpy(computed)):
            if policy.is_full(step):
                policy.take(step, output)
            stepped.append(output if policy.is_full(step) else policy.predict(step))
        np.testing.assert_allclose(torch.stack(stepped), expected, rtol=0, atol=1e-12 * scale)


# Rules over samples, on schedulers whose noise is written out here, x = signal x0 + sigma noise, from their tables in
# float32. On the float64 numbers of a traced solver test_rule_formulas.py has the same rules to 1e-12.


def flow(steps):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(steps)
    sigmas = scheduler.sigmas.double().numpy()
    return scheduler, 1 - sigmas, sigmas


def ddim(steps, prediction):
    scheduler = DDIMScheduler(**SD, clip_sample=False, prediction_type=prediction)
    scheduler.set_timesteps(steps)
    alphas = scheduler.alphas_cumprod[scheduler.timesteps].double().numpy()
    return scheduler, np.sqrt(alphas), np.sqrt(1 - alphas)


def euler(steps, prediction):
    scheduler = EulerDiscreteScheduler(**SD, prediction_type=prediction)
    scheduler.set_timesteps(steps)
    sigmas = scheduler.sigmas.double().numpy()
    return scheduler, np.ones_like(sigmas), sigmas


def stand_for(prediction, signal, sigma, x, output):
    """x0 of an output, from the definitions of epsilon, v and flow, and x0."""
    if prediction == "flow":  # output = noise - x0
        return x - sigma * output
    if prediction == "epsilon":
        return (x - sigma * output) / signal
    size = np.hypot(signal, sigma)  # v is defined where signal^2 + sigma^2 = 1
    return signal / size * x / size - sigma / size * output


CASES = {
    "flow": lambda steps: flow(steps),
    "ddim epsilon": lambda steps: ddim(steps, "epsilon"),
    "ddim v_prediction": lambda steps: ddim(steps, "v_prediction"),
    "euler epsilon": lambda steps: euler(steps, "epsilon"),
    "euler v_prediction": lambda steps: euler(steps, "v_prediction"),
}


@pytest.mark.parametrize("case", CASES)
def test_x0_is_the_clean_sample_again(case):
    scheduler, signal, sigma = CASES[case](20)
    kind = case.split()[-1]
    rows = Predictor("x0").rows(PLANS[-1], measure_scheduler(Predictor("x0"), scheduler, scheduler.timesteps.tolist()))
    x, psi = np.random.default_rng(1).standard_normal((2, 20, 5))
    for step, row in enumerate(rows):
        if row is None:
            continue
        t = max(i for i in FULL if i < step)
        value = sum(w * (x[k.step] if isinstance(k, Sample) else psi[k]) for k, w in row.items())
        then, now = (stand_for(kind, signal[i], sigma[i], x[i], out) for i, out in ((t, psi[t]), (step, value)))
        np.testing.assert_allclose(now, then, rtol=0, atol=1e-5 * np.abs(then).max())  # tables in float32


@pytest.mark.parametrize("case", CASES)
def test_residual_adds_what_the_network_added(case):
    scheduler, signal, sigma = CASES[case](20)
    rule = Predictor("residual")
    rows = rule.rows(PLANS[-1], measure_scheduler(rule, scheduler, scheduler.timesteps.tolist()))
    x, psi = np.random.default_rng(1).standard_normal((2, 20, 5))
    model_input = x if case == "flow" else x / np.hypot(signal, sigma)[:20, None]
    for step, row in enumerate(rows):
        if row:
            t = max(i for i in FULL if i < step)
            value = sum(w * (x[k.step] if isinstance(k, Sample) else psi[k]) for k, w in row.items())
            np.testing.assert_allclose(value, model_input[step] + psi[t] - model_input[t], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["flow", "euler epsilon"])
def test_mean_velocity_is_the_formula(case):
    scheduler, _, sigma = CASES[case](20)
    rule = Predictor("mean-velocity")
    rows = rule.rows(PLANS[-1], measure_scheduler(rule, scheduler, scheduler.timesteps.tolist()))
    x, psi = np.random.default_rng(1).standard_normal((2, 20, 5))

    def formula(y, full, i):
        p = full[-2]
        average = (x[i] - x[p]) / (sigma[i] - sigma[p])
        product = (y[p] - average) / (sigma[i] - sigma[p])
        return y[i - 1] - product * (sigma[i + 1] - sigma[i])

    expected = use(PLANS[-1], formula, psi)

    def by_row(y, full, i):
        return sum(w * (x[k.step] if isinstance(k, Sample) else y[k]) for k, w in rows[i].items())

    np.testing.assert_allclose(use(PLANS[-1], by_row, psi), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


EXACT = {
    "flow": FlowMatchEulerDiscreteScheduler(shift=3.0),
    "ddim": DDIMScheduler(**SD, clip_sample=False),
    "v": DDIMScheduler(**SD, clip_sample=False, prediction_type="v_prediction"),
    "euler": EulerDiscreteScheduler(**SD),
    "dpm": DPMSolver(**SD, prediction_type="v_prediction"),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("solver", EXACT)
def test_folded_and_stepped_are_the_same(solver, name):
    program, plan = trace(EXACT[solver], 20), PLANS[2].with_predictor(name)
    try:
        folded = fold(program, plan)
    except ZeusError:
        assert (name, solver in ("ddim", "v", "dpm")) == ("mean-velocity", True)
        return
    start = noise() * program.init_noise_sigma
    grid = measure_program(plan.rule, program)
    stepped = run_steps(EXACT[solver], 20, toy_denoiser(), start, plan, name, grid)
    tolerance = 1e-12 if solver in ("ddim", "v") else 1e-5  # the others cast to float32 inside
    assert relative_error(run_program(folded, toy_denoiser(), start), stepped) < tolerance


@pytest.mark.parametrize("solver", EXACT)
def test_x0_is_exact_where_the_clean_sample_never_changes(solver):
    """A denoiser that knows one picture: with x0 every plan gives the full run."""
    scheduler = EXACT[solver]
    clean = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(3))
    prepared = type(scheduler).from_config(scheduler.config)
    prepared.set_timesteps(20)
    rule = Predictor("x0")
    grid = measure_scheduler(rule, prepared, [float(t) for t in prepared.timesteps])
    at = {float(t): noise_ for t, noise_ in zip(prepared.timesteps, grid, strict=True)}

    def denoiser(sample, timestep):
        here = at[float(timestep[0])]
        a, b = here.clean
        return (clean - a * sample / here.scale) / b

    start = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(4))

    def follow(plan):
        steps = run_loop(denoiser, scheduler, start, plan, 20)
        return torch.stack([step.latents / step.latents.std() for step in steps])  # Euler's are large at first

    full = follow(Plan("F" * 20))
    assert relative_error(follow(PLANS[3].with_predictor("x0")), full) < 1e-5
    if solver in ("v", "dpm"):  # of a flow, and of epsilon, the output is constant
        assert relative_error(follow(PLANS[3].with_predictor("zeus")), full) > 1e-4


def test_tables_over_samples_are_written_and_read():
    table = Predictor.from_table({2: {0: 0.5, 1: 0.5, Sample(1): -1.0, Sample(2): 1.0}})
    assert table.to_json()["rows"] == {"2": {"0": 0.5, "1": 0.5, "x1": -1.0, "x2": 1.0}}
    assert Predictor.from_json(table.to_json()) == table
    assert table.reads_samples
    plan = Plan("FFXF", table)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("row", [{"y1": 1.0}, {"x": 1.0}, {"x3": 1.0}, {"-1": 1.0}, {"": 1.0}, {"1 ": 1.0}])
def test_tables_with_other_keys_are_refused(row):
    with pytest.raises(ZeusError, match=r"^predictor table: got a weight on "):
        Predictor.from_json({"name": "table", "rows": {"2": row}})


def test_samples_at_skipped_steps_are_refused():
    with pytest.raises(ZeusError, match=r"got weights on steps \[2\] for step 3"):
        Predictor.from_table({2: {1: 1.0}, 3: {1: 1.0, Sample(2): 1.0}}).rows(Plan("FFRRF"))


def test_a_schedule_whose_noise_is_not_known_is_refused():
    from diffusers import EDMEulerScheduler

    solver = trace(EDMEulerScheduler(), 10)
    with pytest.raises(ZeusError, match="predictor x0: got a schedule whose noise is not known"):
        fold(solver, Plan.uniform(10, 2).with_predictor("x0"))
