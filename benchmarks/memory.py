"""Peak memory of a trajectory on the CPU: does it depend on the ratio or on the number of steps?

    python benchmarks/memory.py

Every setting runs in a process of its own, on video latents (1x16x21x60x104, 8 MiB) and a denoiser that allocates its
output anew. Peak is the resident memory above what the process had before the trajectory. The last line is one JSON
object.
"""

import json
import subprocess
import sys
from statistics import median

import click
import diffusers
import torch

from zeus_trt.evaluation.memory import peak_memory_mib, reset_peak_memory
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import ProgramStepper, draw_noise, run, run_steps
from zeus_trt.zeus_graph import Plan, fold, trace

SHAPE = (1, 16, 21, 60, 104)


def measure(mode: str, num_steps: int, ratio: int) -> float:
    """MiB that one trajectory adds at its peak."""
    scheduler = diffusers.DPMSolverMultistepScheduler()
    plan, noise = Plan.uniform(num_steps, ratio), draw_noise(SHAPE, seed=0)
    program = fold(trace(scheduler, num_steps), plan)

    def denoiser(sample, timestep):
        return torch.tanh(sample)

    denoiser(noise, None)
    reset_peak_memory()
    before = peak_memory_mib()
    if mode == "program":
        run(denoiser, ProgramStepper(program, noise))
    else:
        for _ in run_steps(denoiser, scheduler, noise, plan, num_steps):
            pass
    return peak_memory_mib() - before


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--child", nargs=3, hidden=True)
def main(rounds: int, child: tuple[str, str, str] | None) -> None:
    if child:
        click.echo(measure(child[0], int(child[1]), int(child[2])))
        return
    rows = []
    for mode in ("program", "step"):
        for num_steps, ratio in ((50, 0), (50, 2), (50, 4), (200, 2), (200, 4)):
            command = [sys.executable, __file__, "--child", mode, str(num_steps), str(ratio)]
            runs = [float(subprocess.check_output(command, text=True)) for _ in range(rounds)]
            row = {"mode": mode, "num_steps": num_steps, "ratio": ratio}
            rows.append({**row, "mib": round(median(runs), 1), "min": round(min(runs), 1), "max": round(max(runs), 1)})
            click.echo(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    head = {"benchmark": "memory", "latents": SHAPE, "solver": "DPMSolverMultistepScheduler", "rounds": rounds}
    click.echo(json.dumps({**head, "machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
