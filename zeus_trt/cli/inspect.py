"""Looking at bundles, and at this machine."""

import json
from pathlib import Path

import click

from zeus_trt.cli.group import main


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
def inspect(bundle: Path) -> dict:
    """Check BUNDLE, and print what it holds."""
    from zeus_trt.runtime.bundle.bundle import Bundle
    from zeus_trt.runtime.bundle.engine_folder import describe_engines

    opened = Bundle.open(bundle)
    click.echo(opened.describe())
    click.echo(describe_engines(opened))
    return json.loads(opened.manifest.to_json())


@main.command()
def doctor() -> dict:
    """Say what is installed, and which backends can build and run here."""
    from zeus_trt.doctor import examine

    diagnosis = examine()
    click.echo(diagnosis.to_table())
    return diagnosis.to_json()
