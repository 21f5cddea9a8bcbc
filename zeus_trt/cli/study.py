"""The paper's studies."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import guidance_option, progress


@main.command()
@click.argument("name")
@click.argument("path", metavar="BUNDLE|MODEL", type=click.Path(path_type=Path))
@click.option("--num-images", type=click.IntRange(1), default=8, show_default=True)
@guidance_option
@click.option("--seed", default=0, show_default=True, help="Image k has the noise of seed + k.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Timed runs of each row.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the report.")
def study(name, path, num_images, guidance_scale, seed, rounds, output) -> dict:
    """Repeat a study of the paper on a model.

    NAME is one of predictor-order, interleaving, solver-order, few-steps, parameterisation, memory.
    """
    from zeus_trt.evaluation.studies import run_study

    with progress(None) as bar:
        outcome = run_study(
            name, path, output, num_images=num_images, rounds=rounds, guidance_scale=guidance_scale, seed=seed,
            on_run=bar.update,
        )  # fmt: skip
    click.echo(outcome.to_markdown())
    return outcome.to_json()
