"""Showing step plans."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import echo_json, json_option, writes


@main.command()
@click.option("--steps", default=50, show_default=True, help="Evaluations of the denoiser.")
@click.option("--ratio", default=3, show_default=True, help="Skipped steps after each full one.")
@click.option("--window", default="default", show_default=True, help="default, flow, none, or 0.2,0.1.")
@click.option("--nfe", type=int, help="Spread this many full steps evenly, instead of --ratio.")
@click.option("--plan", "plan_text", help="Describe this plan instead: FFFFXRFXRF, or a .json of calibrate.")
@click.option("--scheduler", type=click.Path(path_type=Path), help="diffusers scheduler config: a file, or its folder.")
@click.option("--predictor", help="Rule that fills skipped steps; needs --scheduler.  [default: zeus]")
@click.option("--show-program", is_flag=True, help="Print what every full step does to the state; needs --scheduler.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the plan over the sigmas.")
@json_option
def plan(steps, ratio, window, nfe, plan_text, scheduler, predictor, show_program, output, as_json) -> None:
    """Print a step plan: the string, its full steps, NFE and speed-up bound."""
    from zeus_trt.pictures import find_format
    from zeus_trt.planning import make_plan

    if scheduler is None and (show_program or predictor is not None):
        raise click.UsageError(f"{'--show-program' if show_program else '--predictor'} needs --scheduler")
    planned = make_plan(steps, ratio, window, nfe, plan_text, scheduler, predictor)
    if output:
        with writes(output) as temporary:
            planned.draw().save(temporary, format=find_format(output))
    click.echo(planned.describe(show_program))
    echo_json(as_json, planned.to_json(show_program))
