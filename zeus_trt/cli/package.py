"""Packaging for servers."""

from pathlib import Path

import click

from zeus_trt.cli.group import main


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--triton", is_flag=True, required=True, help="Write a model repository of NVIDIA's Triton server.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--denoiser-backend", default="onnxruntime", show_default=True, help="tensorrt, python, aot-inductor.")
@click.option("--precision", help="That of the graph or engine.  [default: the bundle's first graph]")
@click.option("--max-rows", type=int, default=16, show_default=True, help="Most rows of a call; guidance takes two.")
@click.option("--queue-delay", type=int, default=1000, show_default=True, help="Microseconds a call waits for others.")
@click.option("--trajectories", type=int, default=16, show_default=True, help="Requests that run at the same time.")
@click.option("--overwrite", is_flag=True, help="Replace such a folder.")
def package(bundle, output, triton, **options) -> dict:
    """Write BUNDLE as a folder that a server runs."""
    from zeus_trt.export.triton import package_triton

    files = package_triton(bundle, output, **options)
    click.echo(f"{output}: {len(files)} files")
    return {"output": str(output), "files": list(files)}
