"""Handing bundles to programs that are not Python."""

from dataclasses import asdict
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Numbers
from zeus_trt.errors import escape


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--backend", required=True, help="aot-inductor, tensorrt or tensorrt-rtx, as built; or onnxruntime.")
@click.option("--steps", type=Numbers(1), default="50", show_default=True, help="Solver steps of the programs.")
@click.option("--ratios", type=Numbers(0), default="0,2,3,4", show_default=True, help="Ratios, for each of --steps.")
@click.option("--plans", multiple=True, type=click.Path(path_type=Path), help="A .json of calibrate, as a program too.")
@click.option("--precision", help="That of the graph.  [default: the bundle's first]")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
def package(bundle, output, backend, **options) -> dict:
    """Write what a C++ program needs of BUNDLE: engine, sampling programs, headers, checksums and a README."""
    from zeus_trt.export.deployment import write_deployment

    programs = write_deployment(bundle, output, backend, **options)
    for program in programs:
        click.echo(escape(f"{output / program.file}: {program.nfe} of {len(program.steps)} steps full"))
    return {"output": str(output), "programs": [asdict(program) for program in programs]}


@main.command("cmake-dir")
def cmake_dir() -> dict:
    """Print the folder of the C++ headers, for cmake -Dzeus_trt_DIR=..."""
    from zeus_trt.export.deployment import find_headers

    click.echo(find_headers())
    return {"cmake_dir": str(find_headers())}
