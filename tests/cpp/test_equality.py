"""The C++ stepper equals Python's program mode, on the digits model and on a toy, in every setting."""

import functools

import numpy as np
import pytest
import torch
from cpp_driver import compile_source, run_trajectories
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from tiny_subjects import write_calibrated

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EnginePair, ProgramStepper, Session, draw_noise, run
from zeus_trt.runtime.finite_guard import FiniteGuard
from zeus_trt.zeus_graph import Plan, Predictor, fold, load_plan, trace
from zeus_trt.zeus_graph.noise_grid import measure_program

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
SOLVERS = {
    "euler": FlowMatchEulerDiscreteScheduler(),
    "dpmpp-2m": DPMSolverMultistepScheduler(**FLOW),
    "unipc": UniPCMultistepScheduler(**FLOW),
}
LABELS, NULL, STEPS = torch.tensor([3, 8]), 10, 12
MIXED = "FFQXRQXRFXRQ"
SHAPE = (2, 1, 32, 32)


def measure(found, expected) -> float:
    """Largest difference, relative to the largest number."""
    assert isinstance(found, np.ndarray), found
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def driver():
    return compile_source("driver.cpp")


@pytest.fixture(scope="module")
def open_digits(open_session):
    """Opens the model with a solver; its quantized engine is a double, which makes other numbers."""

    @functools.cache
    def open_pair(solver):
        one = open_session("unet-flow")
        pair = EnginePair(one.engine, lambda **inputs: one.engine(**inputs) * 0.98)
        return Session(one.bundle, engine=pair, scheduler=SOLVERS[solver])

    return open_pair


def make_plan(name, folder):
    if name == MIXED:
        return Plan(name)
    if name != "calibrated":
        return Plan.uniform(STEPS, name)
    write_calibrated(folder / "plan.json")
    return load_plan(folder / "plan.json")


def call_engine(engine):
    """The engine as the driver calls it: with guidance the rows of the null label come first."""

    def denoiser(trajectory, latents, timesteps):
        labels = LABELS if len(latents) == len(LABELS) else torch.cat([torch.full_like(LABELS, NULL), LABELS])
        output = engine(sample=latents.copy(), timestep=timesteps.copy(), class_labels=labels)
        return output.numpy()

    return denoiser


def check_digits(driver, session, plan, guidance_scale, folder, trajectories=1):
    program, _ = session.solver.choose("program", plan, len(plan))
    program.save(folder / "program.json")
    noise = draw_noise(SHAPE, seed=5)
    made = run_trajectories(
        driver, folder / "program.json", noise.numpy(), call_engine(session.engine),
        quantized=call_engine(session.quantized), guidance_scale=guidance_scale, trajectories=trajectories,
    )  # fmt: skip
    expected = session.generate(
        {"class_labels": LABELS}, mode="program", noise=noise, plan=plan, num_steps=len(plan),
        guidance_scale=guidance_scale,
    )  # fmt: skip
    assert len(made) == trajectories
    for found in made.values():
        assert measure(found, expected.latents.numpy()) < 1e-6


@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("plan", [0, 2, 3, 4, "calibrated", MIXED])
def test_the_digits_are_those_of_python(driver, open_digits, tmp_path, solver, plan, guidance_scale):
    check_digits(driver, open_digits(solver), make_plan(plan, tmp_path), guidance_scale, tmp_path)


@pytest.mark.parametrize("compiler", ["g++", pytest.param("clang++", marks=pytest.mark.slow)])
@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
def test_two_threads_at_once(compiler, open_digits, tmp_path, guidance_scale):
    driver = compile_source("driver.cpp", compiler)
    check_digits(driver, open_digits("unipc"), Plan.uniform(STEPS, 3), guidance_scale, tmp_path, trajectories=2)


@pytest.mark.parametrize("scheduler", [EulerDiscreteScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_toy_of_another_size(driver, tmp_path, scheduler, dtype):
    """Sizes that fill no block of the arithmetic; epsilon's solvers, whose inputs are scaled samples."""
    check_toy(driver, tmp_path, fold(trace(scheduler(), 30), Plan.uniform(30, 3)), dtype)


@pytest.mark.parametrize("predictor", ["chebyshev", "foca", "x0", "residual", "mean-velocity", "table"])
def test_rules_over_outputs_and_samples(driver, tmp_path, predictor):
    """A table is written with its rows, those over samples too, which the fingerprint covers."""
    solver, plan = trace(EulerDiscreteScheduler(), 30), Plan.uniform(30, 3)
    if predictor == "table":
        rows = Predictor("residual").rows(plan, measure_program(Predictor("residual"), solver))
        predictor = Predictor.from_table({step: row for step, row in enumerate(rows) if row})
    check_toy(driver, tmp_path, fold(solver, plan.with_predictor(predictor)), torch.float64)


def check_toy(driver, tmp_path, program, dtype):
    program.save(tmp_path / "program.json")
    noise = draw_noise((3, 1, 7, 101), seed=1).to(dtype)

    def denoiser(latents, timesteps):
        return torch.tanh(latents.roll(1, -1) * 0.8 + (timesteps / 1000).to(dtype).sin()[:, None, None, None])

    def answer(trajectory, latents, timesteps):
        return denoiser(torch.tensor(latents), torch.tensor(timesteps)).numpy()

    made = run_trajectories(driver, tmp_path / "program.json", noise.numpy(), answer)
    expected = run(denoiser, ProgramStepper(program, noise)).numpy()
    assert measure(made[0], expected) < 1e-6


def test_a_bad_output_is_refused_in_the_words_of_python(driver, tmp_path):
    program = fold(trace(FlowMatchEulerDiscreteScheduler(), 5), Plan("FFXRF"))
    program.save(tmp_path / "program.json")
    noise = np.ones((2, 8), np.float32)

    def answer(output):
        made = run_trajectories(driver, tmp_path / "program.json", noise, lambda *call: output)
        return made[0]

    said = answer(np.full_like(noise, np.nan))
    with pytest.raises(ZeusError) as error:
        FiniteGuard(torch.device("cpu")).check(0, torch.tensor([np.nan]))
    assert said == str(error.value)
