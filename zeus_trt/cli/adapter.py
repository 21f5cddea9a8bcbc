"""Adapters beside the graphs of a bundle."""

from dataclasses import asdict
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Number
from zeus_trt.errors import escape

_path = click.Path(path_type=Path)


@main.command()
@click.argument("bundle", type=_path)
@click.argument("file", type=_path)
@click.option("-o", "--output", "name", required=True, help="The adapter's name, as in the pipeline.")
@click.option("--scale", type=Number(), default=1.0, show_default=True, help="As set_adapters takes it.")
@click.option("--overwrite", is_flag=True, help="Replace an adapter of this name.")
def adapter(bundle, file, name, scale, overwrite) -> dict:
    """Store FILE, a LoRA in safetensors, in BUNDLE as an adapter that sessions can choose."""
    from zeus_trt.export import add_adapter
    from zeus_trt.runtime.bundle.adapter import Adapter

    added = add_adapter(bundle, file, name, scale=scale, overwrite=overwrite).adapter
    assert isinstance(added, Adapter)
    click.echo(escape(f"{bundle}: {added.name} at {added.scale:g} changes {len(added.scaling)} weights"))
    return {"bundle": str(bundle), "adapter": asdict(added)}
