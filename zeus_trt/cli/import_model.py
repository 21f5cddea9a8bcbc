"""Importing a denoiser that others exported or compiled."""

import json
from pathlib import Path

import click

from zeus_trt.cli.command import say
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Numbers, input_option
from zeus_trt.errors import escape


@main.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Bundle folder to make.")
@click.option("--latents", required=True, help="Its input of noisy latents.")
@click.option("--timestep", required=True, help="Its input of the time.")
@click.option("--timestep-is", help="sigma, log-sigma, or timestep: the scheduler's.  [default: by its name]")
@click.option("--parameterization", help="It returns epsilon, v, flow, sample, edm.  [default: as the scheduler reads]")
@click.option("--scheduler", help="A diffusers scheduler: its config or its class.  [default: Euler's]")
@click.option("--shape", type=Numbers(1), help="Of one of the latents, such as 3,32,32; where the graph leaves it.")
@input_option
@click.option("--steps", type=Numbers(1), default="20,30,50", show_default=True, help="Step counts of stored solvers.")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
def import_model(path, output, inputs, **options) -> dict:
    """Make a bundle of FILE, a denoiser that others exported or compiled, and check it by running it."""
    from zeus_trt.argument_value import read_inputs
    from zeus_trt.export import import_model

    bundle = import_model(path, output, inputs=read_inputs(inputs), say=say, **options)
    click.echo(escape(f"{output}: {bundle.manifest.describe()}"))
    return {"bundle": str(output), "manifest": json.loads(bundle.manifest.to_json())}
