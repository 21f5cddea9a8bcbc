"""The demonstration."""

from pathlib import Path

import click

from zeus_trt.cli.command import say
from zeus_trt.cli.group import main
from zeus_trt.cli.options import progress
from zeus_trt.errors import escape


@main.command()
@click.option("-o", "--output", default="zeus-demo", show_default=True, type=click.Path(path_type=Path))
@click.option("--num-images", type=click.IntRange(1), default=16, show_default=True)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Timed runs of each ratio.")
def demo(output: Path, num_images: int, rounds: int) -> dict:
    """Export the digits model that ships with zeus-trt, and compare r = 0, 2, 3, 4."""
    from zeus_trt.demo import run_demo

    with progress(None) as bar:
        comparison = run_demo(output, num_images=num_images, rounds=rounds, on_run=bar.update, say=say)
    click.echo(comparison.to_table())
    places = f"report: {output / 'report.html'}   picture: {output / 'grid.png'}   bundle: {output / 'bundle'}"
    click.echo(escape(places))
    return comparison.to_json()
