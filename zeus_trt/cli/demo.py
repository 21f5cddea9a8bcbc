"""The demonstration."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import echo_json, json_option, progress


@main.command()
@click.option("-o", "--output", default="zeus-demo", show_default=True, type=click.Path(path_type=Path))
@json_option
def demo(output: Path, as_json: bool) -> None:
    """Export the digits model that ships with zeus-trt, and compare r = 0, 2, 3, 4."""
    from zeus_trt.demo import run_demo

    with progress(None) as bar:
        comparison = run_demo(output, on_run=bar.update, say=lambda text: click.echo(text, err=True))
    click.echo(comparison.to_table())
    click.echo(f"report: {output / 'report.html'}   picture: {output / 'grid.png'}   bundle: {output / 'bundle'}")
    echo_json(as_json, comparison.to_json())
