"""The command line: each command reads its options and calls one library function."""

import json
import re
import sys
from pathlib import Path

import click

from zeus_trt import __version__
from zeus_trt.errors import ZeusError


class Commands(click.Group):
    """A group that shows user errors as one sentence, exit code 1."""

    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except ZeusError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            raise click.ClickException(
                f"file: got {error.filename or 'an error'} ({error.strerror}); expected a place with room that can be "
                "read and written. Choose another."
            ) from error


class Numbers(click.ParamType):
    """Whole numbers with commas between them."""

    name = "n,n,..."

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,2,3", param, ctx)


class Range(click.ParamType):
    """A symbol, its smallest and its largest size."""

    name = "NAME=LOW-HIGH"

    def convert(self, value, param, ctx) -> tuple[str, int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\w+)=(\d+)(?:-(\d+))?", value)
        if not found:
            self.fail(f"{value!r} is not a range such as batch=1-4", param, ctx)
        return found[1], int(found[2]), int(found[3] or found[2])


class Size(click.ParamType):
    """Height and width."""

    name = "HxW"

    def convert(self, value, param, ctx) -> tuple[int, int]:
        try:
            height, width = (int(part) for part in str(value).split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a size such as 512x448", param, ctx)
        return height, width


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="zeus-trt")
def main() -> None:
    """Export diffusion denoisers to compiled engines, and skip more than half of their calls."""


json_option = click.option("--json", "as_json", is_flag=True, help="End stdout with one JSON line.")
sampling_options = [
    click.option("--steps", default=50, show_default=True, help="Solver steps."),
    click.option("--label", "labels", type=Numbers(), help="Class of every image, or one per image: 7 or 0,1,2."),
    click.option("--num-images", type=click.IntRange(1), default=8, show_default=True),
    click.option("--guidance-scale", default=2.0, show_default=True, help="Classifier-free guidance; 1 turns it off."),
    click.option("--seed", default=0, show_default=True, help="Seed of the initial noise."),
    click.option("--predictor", default="zeus", show_default=True, help="Rule that fills skipped steps."),
    click.option("--backend", default="onnxruntime", show_default=True, help="Engine, such as aot-inductor."),
    click.option("--mode", default="auto", show_default=True, help="auto, program, or step."),
]


def _with_sampling_options(command):
    for option in reversed(sampling_options):
        command = option(command)
    return command


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Bundle folder to make.")
@click.option("--component", help="The denoiser, in a pipeline with two.")
@click.option("--size", type=Size(), help="Base size of a pipeline's capture in pixels, such as 512x448.")
@click.option("--null-label", type=int, help="Label of unconditional rows.  [default: the model's last]")
@click.option("--steps", type=Numbers(), default="20,30,50", show_default=True, help="Step counts of stored solvers.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, fp16 or bf16.")
@click.option("--keep-fp32", multiple=True, help="Modules that stay in fp32, such as 'down_blocks.0.*'.")
@click.option("--force", is_flag=True, help="Export bf16 weights in fp16, or fp16 weights in bf16.")
@click.option("--tolerance", type=float, help="Largest relative error to eager.  [default: the precision's]")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
def export(
    model, output, component, size, null_label, steps, precision, keep_fp32, force, tolerance, overwrite
) -> None:
    """Export MODEL to a bundle, and verify it: a diffusers pipeline (folder or hub id), or a bare model folder."""
    from zeus_trt.export import export_model

    click.echo(f"exporting {model} ...", err=True)
    bundle = export_model(
        model, output, component=component, size=size, null_label=null_label, steps=steps, precision=precision,
        keep_fp32=keep_fp32, force=force, tolerance=tolerance, overwrite=overwrite,
    )  # fmt: skip
    click.echo(f"{output}: {bundle.manifest.describe()}")
    stored = [str(num_steps) for num_steps in steps if bundle.solver_file(num_steps).is_file()]
    click.echo(f"stored solvers: {', '.join(stored) or 'none, it runs step by step'}")


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--size", "sizes", multiple=True, type=Size(), help="Pixels to compare at, such as 512x448.")
@click.option("--tolerance", type=float, help="Largest relative error to eager.  [default: the precision's]")
def verify(bundle, model, sizes, tolerance) -> None:
    """Compare BUNDLE's graph again with the MODEL that it was exported from."""
    from zeus_trt.export import verify_bundle

    for record in verify_bundle(bundle, model, sizes=sizes, tolerance=tolerance):
        shape = "x".join(str(size) for size in record.shape)
        click.echo(f"{record.backend} at latents {shape}: relative error to eager {record.relative_error:.1e}")


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
    _echo_json(as_json, json.loads(record.to_json()))


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_with_sampling_options
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

    picture_format, session = _picture_format(output), Session(bundle, backend=backend)
    plan = StepPlan(plan_text) if plan_text else session.plan(steps, ratio)
    with _writes(output) as temporary, _progress(plan.nfe) as bar:
        result = session.generate(
            session.label_images(labels, num_images), plan=plan, num_steps=steps, batch=num_images,
            guidance_scale=guidance_scale, seed=seed, predictor=predictor, mode=mode, on_call=bar.update,
        )  # fmt: skip
        draw_grid({"": result.latents}).save(temporary, format=picture_format)
    report = result.report
    click.echo(
        f"{output}: {report.nfe} of {plan.num_steps} calls, {report.total_seconds:.2f} s "
        f"(engine {report.engine_seconds:.2f} s) on {report.backend}, {report.mode} mode"
    )
    _echo_json(as_json, {"output": str(output), **vars(report)})


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_with_sampling_options
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
    with _progress(None) as bar:
        comparison = compare_ratios(
            session, session.label_images(labels, num_images), ratios=ratios, num_steps=steps, batch=num_images,
            guidance_scale=guidance_scale, seed=seed, predictor=predictor, mode=mode, rounds=rounds, output=output,
            on_call=bar.update,
        )  # fmt: skip
    click.echo(comparison.to_table())
    _echo_json(as_json, comparison.to_json())


@main.command()
@click.option("--steps", default=50, show_default=True, help="Evaluations of the denoiser.")
@click.option("--ratio", default=3, show_default=True, help="Skipped steps after each full one.")
@click.option("--window", default="default", show_default=True, help="default, flow, none, or 0.2,0.1.")
@click.option("--nfe", type=int, help="Spread this many full steps evenly, instead of --ratio.")
@click.option("--plan", "plan_text", help="Describe this plan instead.")
@click.option("--scheduler", type=click.Path(path_type=Path), help="diffusers scheduler config: a file, or its folder.")
@click.option("--predictor", default="zeus", show_default=True, help="Rule that fills skipped steps.")
@click.option("--show-program", is_flag=True, help="Print what every full step does to the state; needs --scheduler.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the plan over the sigmas.")
@json_option
def plan(steps, ratio, window, nfe, plan_text, scheduler, predictor, show_program, output, as_json) -> None:
    """Print a step plan: the string, its full steps, NFE and speed-up bound."""
    from zeus_trt.planning import make_plan

    if show_program and scheduler is None:
        raise click.UsageError("--show-program needs --scheduler")
    planned = make_plan(steps, ratio, window, nfe, plan_text, scheduler, predictor)
    if output:
        with _writes(output) as temporary:
            planned.draw().save(temporary, format=_picture_format(output))
    click.echo(planned.describe(show_program))
    _echo_json(as_json, planned.to_json(show_program))


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
    _echo_json(as_json, json.loads(opened.manifest.to_json()))


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed, and which backends can build and run here."""
    from zeus_trt.doctor import examine

    diagnosis = examine()
    click.echo(diagnosis.to_table())
    _echo_json(as_json, diagnosis.to_json())


@main.command()
@click.option("-o", "--output", default="zeus-demo", show_default=True, type=click.Path(path_type=Path))
@json_option
def demo(output: Path, as_json: bool) -> None:
    """Export the digits model that ships with zeus-trt, and compare r = 0, 2, 3, 4."""
    from zeus_trt.demo import run_demo

    with _progress(None) as bar:
        comparison = run_demo(output, on_call=bar.update, say=lambda text: click.echo(text, err=True))
    click.echo(comparison.to_table())
    click.echo(f"picture: {output / 'grid.png'}   bundle: {output / 'bundle'}")
    _echo_json(as_json, comparison.to_json())


def _progress(total: int | None):
    from tqdm import tqdm

    return tqdm(total=total, unit="call", leave=False, disable=None, file=sys.stderr)


def _writes(path: Path):
    from zeus_trt.files import write_atomically

    return write_atomically(path)


def _picture_format(path: Path) -> str:
    from PIL import Image

    known = Image.registered_extensions()
    if path.suffix.lower() not in known:
        raise ZeusError(f"output: got {path.name}; expected a picture's name such as out.png. Change the ending.")
    return known[path.suffix.lower()]


def _echo_json(wanted: bool, data: dict) -> None:
    if wanted:
        click.echo(json.dumps(data))
