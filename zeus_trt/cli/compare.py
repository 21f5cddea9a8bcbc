"""Comparing eager, compiled and skipped runs, and other accelerations."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Names, Numbers, adapter_option, guidance_option, input_option, progress
from zeus_trt.errors import escape


@main.command()
@click.argument("path", metavar="BUNDLE|MODEL|PIPELINE", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Model or pipeline of a bundle: eager reference.")
@click.option("--backends", "--backend", default="auto", show_default=True, type=Names(), help="Engines.")
@click.option(
    "--ratios", type=Numbers(), default="0,2,3,4", show_default=True, help="Skipped steps after each full one."
)
@click.option("--window", help="Full steps at the ends of the ratios: default, flow, none, 0.2,0.1 or first:11,last:5.")
@click.option("--plans", type=Names(), default=(), help="More plans: medium, FFXRF, ... or JSON files.")
@click.option(
    "--predictors", "--predictor", type=Names(), help="Fill skipped steps.  [default: zeus, or the plan's own]"
)
@click.option("--steps", type=Numbers(1), default="50", show_default=True, help="Solver steps.")
@click.option("--solvers", default="default", show_default=True, type=Names(), help="Such as euler,dpmpp-2m.")
@click.option("--peers", type=Names(), default=(), help="Caches to compare with, such as taylorseer,pab or pab=3.")
@click.option("--compose", is_flag=True, default=None, help="Also run each cache below each plan.")
@click.option("--metrics", type=Names(), help="Some of psnr,ssim,latent-error,temporal,lpips (or lpips=squeeze),fid.")
@click.option("--prompts", type=click.Path(path_type=Path), help="File with a prompt per line, for pipelines.")
@click.option("--label", "--labels", "labels", type=Numbers(), help="Class of every image, or one each: 7 or 0,1.")
@click.option("--num-images", type=click.IntRange(1), default=8, show_default=True)
@guidance_option
@input_option
@adapter_option
@click.option("--seed", default=0, show_default=True, help="Image k has the noise of seed + k.")
@click.option("--mode", help="For bundles: auto, program, or step.  [default: auto]")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Timed runs of each row.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the report; resumed.")
def compare(output, **options) -> dict:
    """Compare eager, compiled and skipped runs of a model: time, quality, memory."""
    from zeus_trt import comparing

    with progress(None) as bar:
        comparison = comparing.compare(output=output, on_run=bar.update, **options)
    click.echo(comparison.to_table())
    if output:
        click.echo(escape(f"report: {output / 'report.html'}"))
    return comparison.to_json()
