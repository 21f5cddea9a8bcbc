"""Exporting, and verifying what was exported."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from zeus_trt.cli.build import echo_engine, gpu_option, range_option, read_ranges, say, show_progress
from zeus_trt.cli.command import say as say_remark
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Argument, Number, Numbers, Range, Size
from zeus_trt.errors import escape

argument_option = click.option(
    "--argument", "arguments", multiple=True, type=Argument(),
    help="What the pipeline is called with besides, such as image=cat.png, prompt='a dog' or strength=0.5.",
)  # fmt: skip


def read_batch(ctx, param, value):
    return (Range().convert(f"batch={value}", param, ctx),) if value else ()


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Bundle folder to make.")
@click.option("--config", type=click.Path(path_type=Path), help="Of a file of weights: the folder of its pipeline.")
@click.option("--component", help="Export this part alone: a denoiser of two, or controlnet.")
@click.option("--size", "sizes", multiple=True, type=Size(), help="Pixels to export a pipeline at, such as 512x448.")
@argument_option
@click.option("--null-label", type=int, help="Label of unconditional rows.  [default: the model's last]")
@click.option("--steps", type=Numbers(1), default="20,30,50", show_default=True, help="Step counts of stored solvers.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, fp16 or bf16.")
@click.option("--keep-fp32", multiple=True, help="Modules that stay in fp32, such as 'down_blocks.0.*'.")
@click.option("--force", is_flag=True, help="Export bf16 weights in fp16, or fp16 weights in bf16.")
@click.option("--tolerance", type=Number(0), help="Largest relative error to eager.  [default: the precision's]")
@click.option("--backend", "backends", multiple=True, help="Build an engine too: tensorrt-rtx, tensorrt, aot-inductor.")
@gpu_option
@click.option("--batch", metavar="LOW-HIGH", callback=read_batch, help="Images at once that engines serve.")
@range_option
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
def export(model, output, backends, gpu, batch, ranges, arguments, **settings) -> dict:
    """Export MODEL to a bundle, and verify it: a diffusers pipeline (folder or hub id), a bare model folder, or a
    .safetensors or .gguf file of a denoiser's weights with --config."""
    from zeus_trt.export import export_with_engines
    from zeus_trt.export.source import open_source

    if (gpu or batch or ranges) and not set(backends) - {"onnxruntime"}:
        raise click.UsageError("--gpu, --batch and --range need --backend: the engine that is built for them")
    source = open_source(model, settings.pop("config"))
    say_remark(f"exporting {model} ...")
    with show_progress() as on_progress:
        bundle, records = export_with_engines(
            source, output, backends, gpu=gpu, ranges=read_ranges((*batch, *ranges)), on_progress=on_progress, say=say,
            arguments=dict(arguments), **settings,
        )  # fmt: skip
    click.echo(escape(f"{output}: {bundle.manifest.describe()}"))
    stored = [num_steps for num_steps in settings["steps"] if bundle.has_solver(num_steps)]
    words = ", ".join(map(str, stored)) or "none, it is traced for each run or goes step by step"
    click.echo(f"stored solvers: {words}")
    for record in records:
        echo_engine(record)
    manifest, engines = json.loads(bundle.manifest.to_json()), [json.loads(record.to_json()) for record in records]
    return {"bundle": str(output), "manifest": manifest, "solvers": stored, "engines": engines}


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--size", "sizes", multiple=True, type=Size(), help="Pixels to compare at, such as 512x448.")
@argument_option
@click.option("--tolerance", type=Number(0), help="Largest relative error to eager.  [default: the precision's]")
def verify(bundle, model, sizes, arguments, tolerance) -> dict:
    """Compare BUNDLE's graphs again with the MODEL that they were exported from."""
    from zeus_trt.export import verify_bundle

    records = verify_bundle(bundle, model, sizes=sizes, arguments=dict(arguments), tolerance=tolerance)
    for record in records:
        shape = "x".join(str(size) for size in record.shape)
        click.echo(f"{record.backend} at latents {shape}: relative error to eager {record.relative_error:.1e}")
    return {"bundle": str(bundle), "verification": [asdict(record) for record in records]}
