"""Program mode: equal to step mode, without allocating, and chosen where it serves."""

import subprocess
import sys

import diffusers
import pytest
import torch
from checkout import edit_json

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import ProgramStepper, Session, draw_noise, run, run_steps
from zeus_trt.zeus_graph import Plan, fold, trace

LABELS = {"class_labels": torch.tensor([3, 8])}
SOLVERS = ["EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "HeunDiscreteScheduler", "UniPCMultistepScheduler"]


def toy(sample, timestep):
    return torch.tanh(sample.roll(1, 1) * 1.3) + 0.001 * timestep[:, None, None, None]


def compile_toy(name, num_steps=20, ratio=3):
    scheduler = getattr(diffusers, name)()
    solver = trace(scheduler, num_steps)
    plan = Plan.uniform(solver.num_evaluations, ratio)
    return scheduler, plan, fold(solver, plan)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 3e-6)])
def test_equals_step_mode(name, dtype, tolerance):
    scheduler, plan, program = compile_toy(name)
    noise = draw_noise((2, 4, 3, 3), seed=0).to(dtype)
    *_, last = run_steps(toy, scheduler, noise, plan, 20)
    got = run(toy, ProgramStepper(program, noise))
    assert got.dtype == dtype
    assert (got - last.latents).norm() <= tolerance * last.latents.norm()


def test_a_loop_can_run_again():
    _, _, program = compile_toy("DPMSolverMultistepScheduler")
    noise = draw_noise((2, 4, 3, 3), seed=0)
    stepper = ProgramStepper(program, noise)
    first = run(toy, stepper).clone()
    run(toy, stepper.restart(draw_noise((2, 4, 3, 3), seed=1)))
    assert torch.equal(run(toy, stepper.restart(noise)), first)


def test_steps_use_no_new_memory():
    _, _, program = compile_toy("DPMSolverMultistepScheduler")
    noise = draw_noise((1, 4, 64, 64), seed=0)
    stepper, output = ProgramStepper(program, noise), torch.ones_like(noise)
    run(lambda *call: output, stepper)
    with torch.profiler.profile(profile_memory=True) as profile:
        run(lambda *call: output, stepper.restart(noise))
    assert max(event.self_cpu_memory_usage for event in profile.key_averages()) < noise.nbytes


def test_an_engine_that_reuses_its_output_buffer_changes_nothing():
    _, _, program = compile_toy("DPMSolverMultistepScheduler")
    noise, buffer = draw_noise((2, 4, 3, 3), seed=0), torch.empty(2, 4, 3, 3)
    expected = run(toy, ProgramStepper(program, noise))
    assert torch.equal(run(lambda *call: buffer.copy_(toy(*call)), ProgramStepper(program, noise)), expected)


def test_auto_takes_the_program_and_agrees_with_step_mode(flow_session):
    plan = flow_session.plan(20, 3)
    settings = {"plan": plan, "num_steps": 20, "guidance_scale": 2.0}
    program, step = (flow_session.generate(LABELS, mode=mode, **settings) for mode in ("auto", "step"))
    assert (program.report.mode, program.report.mode_reason) == ("program", "the solver is linear")
    assert (step.report.mode, step.report.mode_reason) == ("step", "asked for")
    assert program.report.nfe == step.report.nfe == plan.nfe
    torch.testing.assert_close(program.latents, step.latents, rtol=0, atol=1e-4)


def test_auto_runs_the_plain_loop_when_nothing_is_skipped(flow_session):
    report = flow_session.generate(LABELS, plan=flow_session.plan(4, 0), num_steps=4).report
    assert (report.mode, report.mode_reason) == ("step", "nothing is skipped: the plain loop, to the bit")


def test_auto_runs_what_is_not_linear_step_by_step(open_session):
    scheduler = diffusers.DDIMScheduler(clip_sample=True)
    session = open_session("unet-epsilon", scheduler)
    settings = {"plan": session.plan(6, 2), "num_steps": 6}
    report = session.generate(LABELS, **settings).report
    assert report.mode == "step"
    assert "DDIMScheduler" in report.mode_reason
    with pytest.raises(ZeusError, match="step mode"):
        session.generate(LABELS, mode="program", **settings)
    with pytest.raises(ZeusError, match="mode: got 'fast'"):
        session.generate(LABELS, mode="fast", **settings)


def test_stored_solvers_fold_without_diffusers(digits_bundle, flow_session):
    code = f"""
import sys
sys.modules["diffusers"] = None
import torch
from zeus_trt.runtime import Session
session = Session({str(digits_bundle("unet-flow"))!r})
labels = {{"class_labels": torch.tensor([3, 8])}}
for ratio in (0, 3):
    result = session.generate(labels, plan=session.plan(20, ratio), num_steps=20, guidance_scale=2.0)
    print(result.report.mode, result.report.nfe, float(result.latents.double().sum()))
try:
    session.plan(21, 3)
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    full, skipped, refusal = done.stdout.splitlines() or [done.stderr] * 3
    expected = flow_session.generate(LABELS, plan=flow_session.plan(20, 3), num_steps=20, guidance_scale=2.0)
    assert full.split()[:2] == ["program", "20"]
    assert skipped.split()[:2] == ["program", str(expected.report.nfe)]
    assert float(skipped.split()[2]) == pytest.approx(float(expected.latents.double().sum()), rel=1e-3)
    assert "pip install diffusers" in refusal


def test_a_stored_solver_of_another_scheduler_is_refused(digits_bundle, tmp_path):
    import json
    import shutil

    from zeus_trt.files import digest_file

    bundle = shutil.copytree(digits_bundle("unet-epsilon"), tmp_path / "bundle")
    other = shutil.copyfile(digits_bundle("unet-flow") / "solvers" / "20.json", bundle / "solvers" / "20.json")
    manifest = json.loads((bundle / "manifest.json").read_text())
    entry = {"size": other.stat().st_size, "sha256": digest_file(other)}
    edit_json(bundle / "manifest.json", files={**manifest["files"], "solvers/20.json": entry})
    with pytest.raises(ZeusError, match="got scheduler 'FlowMatchEulerDiscreteScheduler'"):
        Session(bundle).plan(20, 3)


@pytest.mark.parametrize("name", ["KDPM2DiscreteScheduler", "HeunDiscreteScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("predictor", ["lagrange-2@sigma", "linear-grid@sigma", "lagrange-2@timestep"])
def test_both_modes_measure_on_the_same_grid(name, predictor):
    scheduler = getattr(diffusers, name)(**({"clip_sample": False} if name == "DDIMScheduler" else {}))
    solver = trace(scheduler, 20)
    noise, plan = draw_noise((2, 4, 3, 3), seed=0).double(), Plan.uniform(solver.num_evaluations, 2)
    try:
        program = fold(solver, plan.with_predictor(predictor))
    except ZeusError as refusal:  # repeated timesteps: then step mode must refuse too
        with pytest.raises(ZeusError, match="equal abscissae"):
            next(run_steps(toy, scheduler, noise, plan.with_predictor(predictor), 20))
        assert "equal abscissae" in str(refusal)  # noqa: PT017
        return
    *_, last = run_steps(toy, scheduler, noise, plan.with_predictor(predictor), 20)
    assert (run(toy, ProgramStepper(program, noise)) - last.latents).norm() <= 1e-6 * last.latents.norm()
