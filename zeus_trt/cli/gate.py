"""Checking that a plan keeps a quality."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Number, Numbers, guidance_option, input_option, progress

_path = click.Path(path_type=Path)


@main.command()
@click.argument("model")
@click.option("--plan", required=True, help="Letters, a preset, or a .json: of calibrate, or of a step policy.")
@click.option("--min-psnr", type=Number(), required=True, help="PSNR in dB to the full run, at least.")
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Solver steps.")
@click.option("--solver", default="default", show_default=True, help="The checkpoint's own, or euler, unipc ...")
@click.option("--label", "labels", type=Numbers(), help="Class labels of the samples, in turn; all by default.")
@click.option("--prompts", type=_path, help="For pipelines: a file with a prompt per line.")
@guidance_option
@input_option
@click.option("--engine", type=_path, help="For pipelines: its bundle, to be run.")
@click.option("--backend", help="Engine, such as aot-inductor.  [default: onnxruntime, eager for pipelines]")
@click.option("--num-held-out", type=click.IntRange(1), default=32, show_default=True, help="Samples to measure on.")
@click.option("--seed", default=0, show_default=True, help="Of the samples.")
def gate(model, plan, min_psnr, **options) -> dict:
    """Measure a plan on held-out samples; exit with 1 if it is below the floor."""
    from zeus_trt.calibrating import run_gate

    with progress(None) as bar:
        result = run_gate(model, plan, min_psnr, on_calls=bar.update, **options)
    click.echo(result.describe())
    return result.check().to_json()
