"""Comparing skipped runs with full ones."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import Numbers, echo_json, json_option, progress, with_sampling_options


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@with_sampling_options
@click.option("--ratios", type=Numbers(), default="0,2,3,4", show_default=True, help="Ratios to compare.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Timed runs of each ratio.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the image grid and the table.")
@json_option
def compare(
    bundle, steps, labels, num_images, guidance_scale, seed, predictor, backend, mode, ratios, rounds, output, as_json
) -> None:
    """Compare skipped runs of BUNDLE with the full run: time, quality, memory."""
    from zeus_trt.calibration import compare_ratios
    from zeus_trt.runtime import Session

    session = Session(bundle, backend=backend)
    with progress(None) as bar:
        comparison = compare_ratios(
            session, session.label_images(labels, num_images), ratios=ratios, num_steps=steps, batch=num_images,
            guidance_scale=guidance_scale, seed=seed, predictor=predictor, mode=mode, rounds=rounds, output=output,
            on_call=bar.update,
        )  # fmt: skip
    click.echo(comparison.to_table())
    echo_json(as_json, comparison.to_json())
