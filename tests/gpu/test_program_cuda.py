"""Both loops on a CUDA device: equal to the CPU, in full float32, without allocating, and capturable in a graph."""

import diffusers
import pytest
import torch

from zeus_trt.runtime import ProgramStepper, draw_noise, run, run_steps
from zeus_trt.zeus_graph import Plan, fold, trace

SOLVERS = ["EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler"]


def toy(sample, timestep):
    return torch.tanh(sample.roll(1, 1) * 1.3) + 0.001 * timestep[:, None, None, None]


def compile_toy(name):
    scheduler = getattr(diffusers, name)()
    solver = trace(scheduler, 20)
    plan = Plan.uniform(solver.num_evaluations, 3)
    return scheduler, plan, fold(solver, plan)


@pytest.fixture
def noise():
    return draw_noise((2, 4, 64, 64), seed=0)


@pytest.mark.parametrize("name", SOLVERS)
def test_both_modes_agree_with_the_cpu(name, noise, device):
    scheduler, plan, program = compile_toy(name)
    expected = run(toy, ProgramStepper(program, noise.double())).float()
    on_device = noise.to(device)
    *_, last = run_steps(toy, scheduler, on_device, plan, 20)
    for got in (run(toy, ProgramStepper(program, on_device)), last.latents):
        assert got.device == device
        assert (got.cpu() - expected).norm() < 3e-6 * expected.norm()


@pytest.mark.parametrize("name", SOLVERS)
def test_tf32_does_not_reach_the_state(name, noise, device):
    _, _, program = compile_toy(name)
    on_device = noise.to(device)
    expected = run(toy, ProgramStepper(program, on_device))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(run(toy, ProgramStepper(program, on_device)), expected)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_half_precision_engine_leaves_the_state_in_float32(noise, device):
    _, _, program = compile_toy("DPMSolverMultistepScheduler")
    on_device = noise.to(device)
    expected = run(lambda *call: toy(*call).half().float(), ProgramStepper(program, on_device))
    got = run(lambda *call: toy(*call).half(), ProgramStepper(program, on_device))
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


def test_steps_allocate_nothing(noise, cuda):
    _, _, program = compile_toy("DPMSolverMultistepScheduler")
    on_device, output = noise.to(cuda), torch.ones_like(noise).to(cuda)
    stepper = ProgramStepper(program, on_device)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    run(lambda *call: output, stepper)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("name", SOLVERS)
def test_a_whole_trajectory_is_captured_in_one_graph(name, noise, graphs):
    _, _, program = compile_toy(name)
    start = noise.to(graphs)
    stepper = ProgramStepper(program, start)
    expected = run(toy, stepper).clone()
    other = run(toy, ProgramStepper(program, start.flip(0))).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        latents = run(toy, stepper.restart(start))
    graph.replay()
    assert torch.equal(latents, expected)
    start.copy_(start.flip(0).clone())
    graph.replay()
    assert torch.equal(latents, other)
