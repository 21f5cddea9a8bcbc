"""Showing step plans."""

import json
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import writes


@main.command(
    exclusive=(("plan_text", "nfe", "ratio", "preset"), ("plan_text", "window"), ("nfe", "window")),
    needs={"show_program": "scheduler", "predictor": "scheduler"},
)
@click.option("--steps", type=int, help="Evaluations of the denoiser.  [default: 50, or as many as --plan has]")
@click.option("--ratio", type=int, help="Skipped steps after each full one.  [default: 3]")
@click.option("--preset", help="medium, fast or turbo, instead of --ratio.")
@click.option("--window", help="default, flow, none, 0.2,0.1 or first:11,last:5.  [default: default]")
@click.option("--nfe", type=int, help="Spread this many full steps evenly, instead of --ratio.")
@click.option("--plan", "plan_text", help="Describe this plan instead: FFFFXRFXRF, or a .json of calibrate.")
@click.option("--scheduler", type=click.Path(path_type=Path), help="diffusers scheduler config: a file, or its folder.")
@click.option("--predictor", help="Rule that fills skipped steps; needs --scheduler.  [default: zeus]")
@click.option("--show-program", is_flag=True, help="Print what every full step does to the state; needs --scheduler.")
@click.option("--step-policy", is_flag=True, help="Print F and Q as the diffusion_step_policy of a checkpoint.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the plan over the sigmas.")
def plan(plan_text, show_program, step_policy, output, **options) -> dict:
    """Print a step plan: the string, its full steps, NFE and speed-up bound."""
    from zeus_trt.pictures import find_format
    from zeus_trt.planning import make_plan
    from zeus_trt.zeus_graph.step_policy import write_step_policy

    planned = make_plan(text=plan_text, **options)
    if step_policy:
        policy = write_step_policy(planned.plan)
        click.echo(json.dumps(policy, indent=2))
        return policy
    if output:
        with writes(output) as temporary:
            planned.draw().save(temporary, format=find_format(output))
    click.echo(planned.describe(show_program))
    return planned.to_json(show_program)
