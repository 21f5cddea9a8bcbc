"""Pictures in bulk."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import progress
from zeus_trt.cli.ray import RAY_OPTIONS, ray_options, read_ray

_path = click.Path(path_type=Path)


@main.command("generate-batch", needs=dict.fromkeys(RAY_OPTIONS[1:], "ray"))
@click.argument("model")
@click.argument("requests", type=_path)
@click.option("-o", "--output", required=True, type=_path, help="Folder to fill; goes on where it was left.")
@click.option("--engine", help="For pipelines: the bundle, which runs.")
@click.option("--backend", default="auto", show_default=True, help="Engine, such as aot-inductor.")
@click.option("--device", help="Where it runs.  [default: a GPU if there is one]")
@click.option("--dtype", type=click.Choice(["fp32", "fp16", "bf16"]), help="For pipelines.  [default: fp32]")
@click.option("--max-rows", type=click.IntRange(1), default=8, show_default=True, help="Most rows of a call.")
@click.option("--format", "ending", default="png", show_default=True, help="Of the pictures: png, jpg, webp ...")
@ray_options
def generate_batch(requests, output, ending, **options) -> dict:
    """Make a picture for each request in a file: REQUESTS.jsonl, or .parquet."""
    from zeus_trt import generating
    from zeus_trt.serving_model import ServedModel

    cluster = read_ray(options)
    run: generating.Runner = generating.run_here
    if cluster:
        from zeus_trt.generating_on_ray import run_on_ray

        run = run_on_ray(cluster)
    with progress(None) as bar:
        summary = generating.generate_batch(
            ServedModel(**options), requests, output, ending=f".{ending}", run=run, on_picture=bar.update
        )
    click.echo(summary.describe())
    summary.check()
    return vars(summary)
