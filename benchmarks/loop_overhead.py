"""Host time of the solver loop: program mode, step mode and diffusers' own loop, on a denoiser that costs nothing.

    python benchmarks/loop_overhead.py [--device cpu|cuda]

The denoiser returns the same tensor at once, so what is left is what the loop itself costs the host. On CUDA nothing
is waited for inside a trajectory: the figures are the time to enqueue it. Medians over interleaved rounds; the last
line is one JSON object. diffusers' loop calls the denoiser at every step: its cost per step is the same at every ratio.
Where g++ and nlohmann-json are installed, the C++ header runs the same program on the CPU (``loop_overhead.cpp``).
"""

import json
import shutil
import subprocess
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

import click
import diffusers
import torch

from zeus_trt.export.deployment import find_headers
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import ProgramStepper, draw_noise, run, run_steps
from zeus_trt.zeus_graph import Plan, SamplingProgram, fold, trace

SHAPES = {
    "1x1x4x4": (1, 1, 4, 4),  # hardly any arithmetic: what is left is the loop
    "1x1x32x32": (1, 1, 32, 32),
    "1x4x128x128": (1, 4, 128, 128),
    "1x16x21x60x104": (1, 16, 21, 60, 104),
}
SOLVERS = {
    "euler": diffusers.EulerDiscreteScheduler,
    "dpmpp-2m": diffusers.DPMSolverMultistepScheduler,
    "flow-euler": diffusers.FlowMatchEulerDiscreteScheduler,
}
NUM_STEPS, RATIO = 50, 3


def run_diffusers(denoiser, scheduler, noise) -> torch.Tensor:
    """A pipeline's loop without its pipeline."""
    scheduler.set_timesteps(NUM_STEPS, device=noise.device)
    latents = noise * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        model_input = scheduler.scale_model_input(latents, t) if hasattr(scheduler, "scale_model_input") else latents
        output = denoiser(sample=model_input, timestep=t.expand(len(latents)))
        latents = scheduler.step(output, t, latents, return_dict=False)[0]
    return latents


def measure(loops: dict, rounds: int, synchronize) -> dict[str, list[float]]:
    """Microseconds of host time per trajectory; the loops in turn, so that a drifting machine favours none."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for round_ in range(rounds + 2):
        for name, loop in loops.items():
            synchronize()
            start = time.perf_counter()
            loop()
            elapsed = 1e6 * (time.perf_counter() - start)
            if round_ >= 2:
                times[name].append(elapsed)
    synchronize()
    return times


def time_once(function) -> tuple[float, object]:
    """Seconds of one call, the best of three, and its result."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def compile_cpp(folder: Path) -> Path | None:
    """The C++ loop; None without a compiler or nlohmann-json."""
    source, program = Path(__file__).with_suffix(".cpp"), folder / "loop_overhead"
    if not shutil.which("g++"):
        return None
    headers = find_headers()
    command = ["g++", "-std=c++17", "-O3", "-march=native", f"-I{headers}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return program if done.returncode == 0 else None


def run_cpp(cpp: Path, program: SamplingProgram, noise: torch.Tensor, rounds: int) -> float:
    """Microseconds per trajectory, the median."""
    program.save(cpp.with_name("program.json"))
    command = [str(cpp), str(cpp.with_name("program.json")), str(noise.numel()), str(rounds + 2)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return median([int(line) for line in done.stdout.split()][2:]) / 1000


def bench(solver: str, shape: str, device: str, rounds: int, cpp: Path | None) -> dict:
    """One row: host microseconds of every loop, and what program mode costs before the first step."""
    scheduler = SOLVERS[solver]()
    trace_seconds, traced = time_once(lambda: trace(scheduler, NUM_STEPS))
    plan, full = Plan.uniform(NUM_STEPS, RATIO), Plan.uniform(NUM_STEPS, 0)
    fold_seconds, program = time_once(lambda: fold(traced, plan))
    noise = draw_noise(SHAPES[shape], seed=0).to(device)
    output = torch.zeros_like(noise)

    def denoiser(**inputs):
        return output

    stepper, full_stepper = ProgramStepper(program, noise), ProgramStepper(fold(traced, full), noise)

    def run_all(plan):
        for _ in run_steps(denoiser, scheduler, noise, plan, NUM_STEPS):
            pass

    times = measure(
        {
            "program": lambda: run(lambda *call: output, stepper.restart(noise)),
            "program_full": lambda: run(lambda *call: output, full_stepper.restart(noise)),
            "step": lambda: run_all(plan),
            "diffusers": lambda: run_diffusers(denoiser, scheduler, noise),
        },
        rounds,
        torch.cuda.synchronize if device == "cuda" else lambda: None,
    )
    middle = {name: median(values) for name, values in times.items()}
    if cpp and device == "cpu":
        middle["cpp"] = run_cpp(cpp, program, noise, rounds)
    ratios = [d / p for d, p in zip(times["diffusers"], times["program"], strict=True)]
    return {
        "solver": solver,
        "shape": shape,
        "device": device,
        "latents": program.num_latents,
        "trajectory_us": {name: round(value, 1) for name, value in middle.items()},
        "program_us_per_full_step": round(middle["program"] / plan.nfe, 2),
        "cpp_us_per_full_step": round(middle["cpp"] / plan.nfe, 3) if "cpp" in middle else None,
        "program_us_per_skipped_step": 0.0 if program.nfe == plan.nfe else None,
        "step_us_per_step": round(middle["step"] / NUM_STEPS, 2),
        "diffusers_us_per_step": round(middle["diffusers"] / NUM_STEPS, 2),
        "diffusers_over_program": [round(f(ratios), 1) for f in (min, median, max)],
        "trace_ms": round(1000 * trace_seconds, 1),
        "fold_ms": round(1000 * fold_seconds, 1),
    }


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default=None, help="Both where present, by default.")
@click.option("--rounds", default=20, show_default=True)
def main(device: str | None, rounds: int) -> None:
    devices = [device] if device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cpp = compile_cpp(Path(folder))
        for name, shape, solver in product(devices, SHAPES, SOLVERS):
            row = bench(solver, shape, name, rounds, cpp)
            rows.append(row)
            least, middle, most = row["diffusers_over_program"]
            click.echo(
                f"{name:<5}{shape:<16}{solver:<11} program {row['program_us_per_full_step']:>8.1f} us/full step, "
                f"C++ {row['cpp_us_per_full_step'] or 'not run'}, "
                f"step {row['step_us_per_step']:>8.1f}, diffusers {row['diffusers_us_per_step']:>8.1f} us/step; "
                f"diffusers/program {middle}x ({least}-{most}); "
                f"trace {row['trace_ms']} ms, fold {row['fold_ms']} ms"
            )
    settings = {"num_steps": NUM_STEPS, "ratio": RATIO, "rounds": rounds}
    click.echo(json.dumps({"benchmark": "loop_overhead", **settings, "machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
