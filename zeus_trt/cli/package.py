"""Handing bundles to programs and servers that are not Python's."""

from dataclasses import asdict
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Numbers
from zeus_trt.errors import escape

_CPP = ("backend", "steps", "ratios", "plans")
_TRITON = ("denoiser_backend", "max_rows", "queue_delay", "trajectories")


@main.command(exclusive=[("triton", name) for name in _CPP], needs=dict.fromkeys(_TRITON, "triton"))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--backend", help="For C++: aot-inductor, tensorrt or tensorrt-rtx, as built; or onnxruntime.")
@click.option("--steps", type=Numbers(1), default="50", show_default=True, help="C++: solver steps of the programs.")
@click.option("--ratios", type=Numbers(0), default="0,2,3,4", show_default=True, help="C++: ratios, each with --steps.")
@click.option("--plans", multiple=True, type=click.Path(path_type=Path), help="C++: a plan.json, as a program.")
@click.option("--triton", is_flag=True, help="Write a model repository of NVIDIA's Triton server instead.")
@click.option("--denoiser-backend", default="onnxruntime", show_default=True, help="tensorrt, python, aot-inductor.")
@click.option("--max-rows", type=int, default=16, show_default=True, help="Most rows of a call; guidance takes two.")
@click.option("--queue-delay", type=int, default=1000, show_default=True, help="Microseconds a call waits for others.")
@click.option("--trajectories", type=int, default=16, show_default=True, help="Requests that run at the same time.")
@click.option("--precision", help="That of the graph or engine.  [default: the bundle's first graph]")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
def package(bundle, output, triton, backend, precision, overwrite, **options) -> dict:
    """Write BUNDLE as a folder for a C++ program (--backend) or for NVIDIA's Triton server (--triton)."""
    if not triton and backend is None:
        raise click.UsageError("give --backend, for a C++ program, or --triton")
    names, shared = (_TRITON if triton else _CPP[1:]), {"precision": precision, "overwrite": overwrite}
    chosen = {name: options[name] for name in names} | shared
    if triton:
        from zeus_trt.export.triton import package_triton

        files = package_triton(bundle, output, **chosen)
        click.echo(f"{output}: {len(files)} files")
        return {"output": str(output), "files": list(files)}
    from zeus_trt.export.deployment import write_deployment

    programs = write_deployment(bundle, output, backend, **chosen)
    for program in programs:
        click.echo(escape(f"{output / program.file}: {program.nfe} of {len(program.steps)} steps full"))
    return {"output": str(output), "programs": [asdict(program) for program in programs]}


@main.command("cmake-dir")
def cmake_dir() -> dict:
    """Print the folder of the C++ headers, for cmake -Dzeus_trt_DIR=..."""
    from zeus_trt.export.deployment import find_headers

    click.echo(find_headers())
    return {"cmake_dir": str(find_headers())}
