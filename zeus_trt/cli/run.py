"""Sampling."""

from pathlib import Path

import click

from zeus_trt.cli.group import main
from zeus_trt.cli.options import echo_json, json_option, picture_format, progress, with_sampling_options, writes


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@with_sampling_options
@click.option("--ratio", default=3, show_default=True, help="Skipped steps after each full one; 0 skips none.")
@click.option("--plan", "plan_text", help="Step plan, such as FFFFXRFXRF, instead of --ratio.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Picture to write.")
@json_option
def run(
    bundle, steps, labels, num_images, guidance_scale, seed, predictor, backend, mode, ratio, plan_text, output, as_json
) -> None:
    """Make pictures with the BUNDLE's engine."""
    from zeus_trt.pictures import draw_grid
    from zeus_trt.runtime import Session
    from zeus_trt.zeus_graph import StepPlan

    kind, session = picture_format(output), Session(bundle, backend=backend)
    plan = StepPlan(plan_text) if plan_text else session.plan(steps, ratio)
    with writes(output) as temporary, progress(plan.nfe) as bar:
        result = session.generate(
            session.label_images(labels, num_images), plan=plan, num_steps=steps, batch=num_images,
            guidance_scale=guidance_scale, seed=seed, predictor=predictor, mode=mode, on_call=bar.update,
        )  # fmt: skip
        draw_grid({"": result.latents}).save(temporary, format=kind)
    report = result.report
    click.echo(
        f"{output}: {report.nfe} of {plan.num_steps} calls, {report.total_seconds:.2f} s "
        f"(engine {report.engine_seconds:.2f} s) on {report.backend}, {report.mode} mode"
    )
    echo_json(as_json, {"output": str(output), **vars(report)})
