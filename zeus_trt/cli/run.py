"""Sampling."""

from pathlib import Path

import click

from zeus_trt.cli.command import warn
from zeus_trt.cli.group import main
from zeus_trt.cli.options import (
    Number,
    Numbers,
    Size,
    Text,
    adapter_option,
    guidance_option,
    input_option,
    progress,
)

_EXCLUSIVE = (("plan", "ratio", "preset", "min_psnr"), ("plan", "window", "min_psnr"), ("predictor", "min_psnr"))


@main.command(exclusive=_EXCLUSIVE, needs={"strength": "image"})
@click.argument("model")
@click.option(
    "--prompt", "prompts", multiple=True, type=Text(), help="For pipelines: text of every image, or several in turn."
)
@click.option("--negative-prompt", help="For pipelines.")
@click.option("--label", "labels", type=Numbers(), help="Class of every image, or several in turn: 7 or 0,1,2.")
@click.option(
    "--num-images", type=click.IntRange(1), help="No fewer than prompts.  [default: as many, 8 of class labels]"
)
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Solver steps.")
@guidance_option
@input_option
@adapter_option
@click.option("--seed", default=0, show_default=True, help="Image k has the noise of seed + k.")
@click.option("--ratio", type=int, help="Skipped steps after each full one; 0 skips none.  [default: 3]")
@click.option("--plan", help="Step plan instead of --ratio: FFFFXRFXRF, or a .json of calibrate.")
@click.option("--min-psnr", type=Number(), help="Instead: dB to the full run; a plan of the bundle has it.")
@click.option("--window", help="Full steps at both ends: default, flow, none, 0.2,0.1 or first:11,last:5.")
@click.option("--preset", help="medium, fast or turbo, instead of --ratio.")
@click.option("--predictor", help="Rule that fills skipped steps.  [default: zeus, or a calibrated plan's own]")
@click.option("--policy", help="Decides on every step as it runs: easycache=0.05, adaptive, sada or drift.")
@click.option("--engine", type=click.Path(path_type=Path), help="For pipelines: its bundle, to be run.")
@click.option("--backend", help="Engine, such as aot-inductor.  [default: the best that is here]")
@click.option("--mode", help="For bundles: auto, program, or step.  [default: auto]")
@click.option("--size", type=Size(), help="For pipelines: pixels, such as 512x448.")
@click.option("--frames", type=click.IntRange(1), help="For pipelines of videos.")
@click.option("--image", type=click.Path(path_type=Path), help="For pipelines: a picture to begin with, or to follow.")
@click.option("--strength", type=Number(0, 1), help="How much of the picture is made anew, 0..1.")
@click.option("--device", help="For pipelines.  [default: a GPU if there is one]")
@click.option("--dtype", help="For pipelines: fp32, fp16 or bf16.  [default: fp32]")
@click.option("--compare-full", is_flag=True, help="Write the full run too, as NAME-full.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Picture or video to write.")
def run(**options) -> dict:
    """Make pictures with a bundle's engine, or with a diffusers pipeline (folder or hub id)."""
    from zeus_trt.sampling import run_model

    made = run_model(progress=lambda: progress(None), warn=warn, **options)
    for one in made:
        click.echo(one.describe())
    return made[0].to_json()
