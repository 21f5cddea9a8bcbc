"""Graphs in 8 bits."""

from pathlib import Path

import click

from zeus_trt.cli.command import say
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Number, Numbers, Size, guidance_option, input_option, progress

_path = click.Path(path_type=Path)


@main.command(exclusive=(("sensitivity", "min_psnr"), ("sensitivity", "max_error"), ("sensitivity", "overwrite")))
@click.argument("bundle", type=_path)
@click.option("--precision", required=True, help="int8 or fp8.")
@click.option("--plan", help="The plan that will run: letters, a .json, medium, fast or turbo.  [default: every step]")
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Solver steps.")
@click.option("--solver", default="default", show_default=True, help="The checkpoint's own, or euler, unipc ...")
@click.option("--model", type=_path, help="The pipeline of BUNDLE, where prompts make its inputs.")
@click.option("--prompts", type=_path, help="For pipelines: a file with a prompt per line.")
@click.option("--size", type=Size(), help="For pipelines: pixels, such as 512x448.")
@click.option("--frames", type=click.IntRange(1), help="For pipelines of videos.")
@click.option("--label", "labels", type=Numbers(), help="Class labels of the samples, in turn; all by default.")
@guidance_option
@input_option
@click.option("--num-trajectories", type=click.IntRange(1), default=16, show_default=True, help="Runs to record.")
@click.option("--num-held-out", type=click.IntRange(1), default=8, show_default=True, help="Samples to measure on.")
@click.option("--keep", multiple=True, help="Layers that stay in float: a pattern such as down_blocks.0.*.")
@click.option("--min-psnr", type=Number(), help="PSNR in dB to the float graph, at least.  [default: 30]")
@click.option("--max-error", type=Number(0), help="Relative error of a step, at most.  [default: 0.5]")
@click.option("--seed", default=1000, show_default=True, help="Sample k has the noise of seed + k.")
@click.option("--overwrite", is_flag=True, help="Replace a graph of this precision.")
@click.option("--sensitivity", is_flag=True, help="Measure each block alone instead, and change nothing.")
def quantize(sensitivity, **options) -> dict:
    """Add a graph in 8 bits to BUNDLE, if it is near enough to the float graph."""
    from zeus_trt import quantizing

    given = {name: value for name, value in options.items() if value is not None}
    with progress(None) as bar:
        if sensitivity:
            return _show_blocks(quantizing.measure_sensitivity(on_calls=bar.update, **given))
        report = quantizing.quantize(on_calls=bar.update, **given)
    for line in report.describe_coverage().splitlines():
        say(line)
    click.echo(report.describe())
    return report.to_json()


def _show_blocks(blocks) -> dict:
    from dataclasses import asdict

    from zeus_trt.calibration.quantization_report import describe_blocks

    click.echo(describe_blocks(blocks))
    return {"blocks": [asdict(block) for block in blocks]}
