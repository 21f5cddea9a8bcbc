"""Looking at bundles, and at this machine."""

import json
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import echo_json, json_option


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
def inspect(bundle: Path, as_json: bool) -> None:
    """Check BUNDLE, and print what it holds."""
    from zeus_trt.runtime.bundle import Bundle
    from zeus_trt.runtime.engine_folder import describe_engines

    opened = Bundle.open(bundle)
    click.echo(opened.describe())
    click.echo(describe_engines(opened))
    echo_json(as_json, json.loads(opened.manifest.to_json()))


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed, and which backends can build and run here."""
    from zeus_trt.doctor import examine

    diagnosis = examine()
    click.echo(diagnosis.to_table())
    echo_json(as_json, diagnosis.to_json())
