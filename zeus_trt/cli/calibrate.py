"""Finding the best plan."""

from pathlib import Path

import click

from zeus_trt.cli.command import say
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Number, Numbers, Scale, input_option, progress

_path = click.Path(path_type=Path)


_GOALS = ("nfe", "speedup", "min_psnr")
_RECORDING = ("trajectories", "num_trajectories", "probes", "num_validation", "max_calls", "cost", "objective")


@main.command(
    exclusive=(
        ("check", "pareto"),
        ("guidance_scale", "check_guidance"),
        _GOALS,
        *(("check", name) for name in (*_GOALS, *_RECORDING)),
        *(("pareto", name) for name in _GOALS),
    )
)
@click.argument("model")
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True, help="Solver steps.")
@click.option("--solver", multiple=True, default=("default",), help="The checkpoint's own, or euler ...; or several.")
@click.option("--budget", "nfe", type=int, help="Full steps.")
@click.option("--speedup", type=Number(), help="Evaluations / full steps, at least.")
@click.option("--min-psnr", type=Number(), help="PSNR in dB to the full run, at least.")
@click.option("--cost", help="q=0.55 or q=measured: use the quantized graph too; its call costs so much of a full one.")
@click.option(
    "--objective",
    type=click.Choice(("mean", "worst-decile")),
    default="mean",
    show_default=True,
    help="What plans are searched and chosen by: the mean over samples, or the worst tenth of them.",
)
@click.option("--pareto", is_flag=True, help="Many budgets: a table and a plot, beside the paper's presets.")
@click.option("--check", type=_path, help="Measure this plan on new samples instead.")
@click.option("--check-guidance", type=Number(), multiple=True, help="With --check: measure at this scale, and others.")
@click.option("--label", "labels", type=Numbers(), help="Class labels of the samples, in turn; all by default.")
@click.option("--prompts", type=_path, help="For pipelines: a file with a prompt per line.")
@click.option(
    "--guidance-scale", type=Scale(), help="As in run, or a range such as 1.5:5, over which samples are spread."
)
@input_option
@click.option("--engine", type=_path, help="For pipelines: its bundle, to be run.")
@click.option("--backend", help="Engine, such as aot-inductor.  [default: onnxruntime, eager for pipelines]")
@click.option("--trajectories", type=_path, help="File of the recorded full runs.  [default: in the bundle]")
@click.option("--num-trajectories", type=click.IntRange(1), default=16, show_default=True, help="Full runs to record.")
@click.option("--probes/--no-probes", default=True, help="Record how outputs respond to errors, or ask the prior.")
@click.option("--num-validation", type=click.IntRange(1), default=16, show_default=True, help="Samples to choose on.")
@click.option("--num-held-out", type=click.IntRange(1), default=32, show_default=True, help="Samples to measure on.")
@click.option("--max-calls", type=click.IntRange(1), help="Most denoiser evaluations of measuring, per budget.")
@click.option("--seed", default=0, show_default=True, help="Of the samples and the search.")
@click.option("-o", "--output", type=_path, help="Plan to write (.json); with --pareto a .csv and a .png.")
def calibrate(model, nfe, speedup, min_psnr, pareto, check, output, **options) -> dict:
    """Find the best plan for a bundle or a pipeline, its solver and a budget, from a few of its trajectories."""
    from zeus_trt.calibrating import run_calibration
    from zeus_trt.calibration.goals import Goal

    if options["check_guidance"] and not check:
        raise click.UsageError("--check-guidance needs --check: the plan to measure")
    if not check and output is None:
        raise click.UsageError("-o is needed: where the plan goes")
    if not check and not pareto and nfe is speedup is min_psnr is None:
        raise click.UsageError("a goal is needed: --budget, --speedup, --min-psnr, or --pareto for many")
    goal = None if check or pareto else Goal(nfe, speedup, min_psnr)
    with progress(None) as bar:
        result = run_calibration(model, output, goal, check, say=say, on_calls=bar.update, **options)
    click.echo(result.describe())
    return result.to_json()
