"""Building engines."""

import json
from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Range, echo_json, json_option


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--backend", required=True, help="tensorrt, tensorrt-rtx or aot-inductor.")
@click.option("--gpu", multiple=True, help="What to build for, such as sm_89.  [default: this machine]")
@click.option("--precision", help="Refuse another than this one; engines have that of the graph.")
@click.option("--range", "ranges", multiple=True, type=Range(), help="Sizes to serve, such as batch=1-4.")
@click.option("--guidance/--no-guidance", default=None, help="Whether guidance doubles the batch.")
@click.option("--model", type=click.Path(path_type=Path), help="The exported model; for aot-inductor.")
@json_option
def build(bundle, backend, gpu, precision, ranges, guidance, model, as_json) -> None:
    """Build an engine of BUNDLE, unless it has one that differs in nothing."""
    from zeus_trt.export.build import build_engine
    from zeus_trt.export.profile import SizeRange
    from zeus_trt.export.retrace import choose_trace

    record = build_engine(
        bundle, backend, gpu=gpu, precision=precision, guidance=guidance, trace=choose_trace(bundle, model),
        ranges={name: SizeRange(low, low, high) for name, low, high in ranges},
        say=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    target, seconds = record.spec.target, record.build_seconds
    click.echo(f"{backend} {record.spec.precision} for {target}: {record.size / 2**20:.1f} MiB in {seconds} s")
    echo_json(as_json, json.loads(record.to_json()))
