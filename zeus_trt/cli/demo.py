"""The demonstration."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import echo_json, json_option, progress


@main.command()
@click.option("-o", "--output", default="zeus-demo", show_default=True, type=click.Path(path_type=Path))
@click.option("--num-images", type=click.IntRange(1), default=16, show_default=True)
@json_option
def demo(output: Path, num_images: int, as_json: bool) -> None:
    """Export the digits model that ships with zeus-trt, and compare r = 0, 2, 3, 4."""
    from zeus_trt.demo import run_demo

    with progress(None) as bar:
        comparison = run_demo(
            output, num_images=num_images, on_run=bar.update, say=lambda text: click.echo(text, err=True)
        )
    click.echo(comparison.to_table())
    click.echo(f"report: {output / 'report.html'}   picture: {output / 'grid.png'}   bundle: {output / 'bundle'}")
    echo_json(as_json, comparison.to_json())
