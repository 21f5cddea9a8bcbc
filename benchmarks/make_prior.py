"""Makes the prior that zeus-trt brings from recorded trajectories of bundles.

    python benchmarks/make_prior.py unet-flow=BUNDLE dit-flow=BUNDLE ... -o zeus_graph/prior.json

Each bundle's trajectories are recorded in its folder ``calibration``, or read from there. A kernel is added to the
prior, or replaces the one of its name. The last line is one JSON object.
"""

import json
from dataclasses import replace
from pathlib import Path

import click

from zeus_trt.calibration.kernel import make_kernel
from zeus_trt.calibration.task import TaskOptions, open_task
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.runtime import Bundle
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.kernel import Kernel


def make(name: str, bundle: Path, options: TaskOptions) -> Kernel:
    """The kernel of a bundle's trajectories, which are recorded where they are missing."""
    task = open_task(SessionWorkload(Bundle.open(bundle), guidance_scale=2.0), options)
    program, stats = task.workload.program(options.steps, options.solver), task.record()[0]
    facts = {"scheduler": program.scheduler, "steps": options.steps, "trajectories": len(stats.numbers)}
    return replace(make_kernel(name, program, stats), source={**stats.tag["workload"], **facts})


@click.command()
@click.argument("bundles", nargs=-1, required=True)
@click.option("--steps", default=50, show_default=True)
@click.option("--num-trajectories", default=16, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(bundles: tuple[str, ...], steps: int, num_trajectories: int, output: Path) -> None:
    kept = json_file.load(output, "prior")["kernels"] if output.exists() else []
    found = {kernel["name"]: kernel for kernel in kept}
    for text in bundles:
        name, _, bundle = text.partition("=")
        options = TaskOptions(steps, num_trajectories=num_trajectories)
        kernel = make(name, Path(bundle), options)
        found[name] = kernel.to_json()
        click.echo(f"{name}: {kernel.parameterization}", err=True)
    json_file.save(output, {"format": json_file.FORMAT, "kernels": list(found.values())})
    click.echo(json.dumps({"benchmark": "make_prior", "kernels": list(found), "bytes": output.stat().st_size}))


if __name__ == "__main__":
    main()
