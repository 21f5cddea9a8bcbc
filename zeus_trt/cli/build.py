"""Building engines."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from zeus_trt.cli.command import QUIET, is_on
from zeus_trt.cli.command import say as say_remark
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Range
from zeus_trt.errors import escape

gpu_option = click.option("--gpu", multiple=True, help="What to build for, such as sm_89.  [default: this machine]")
range_option = click.option(
    "--range", "ranges", multiple=True, type=Range(), help="Sizes to serve, such as batch=1-4 or height=64-128."
)
tensorrt_options = [
    click.option("--optimization-level", type=int, help="TensorRT: 0 (fast to build) to 5 (fast to run)."),
    click.option("--tf32", is_flag=True, help="TensorRT: round float32 factors to TF32."),
    click.option("--weight-streaming", is_flag=True, help="TensorRT: weights may stay in host memory."),
    click.option("--refittable", is_flag=True, help="TensorRT: weights can be replaced later."),
    click.option("--version-compatible", is_flag=True, help="TensorRT: later versions of the major load it."),
    click.option("--hardware-compatible", is_flag=True, help="TensorRT: every GPU from sm_80 on runs it."),
]


def with_tensorrt_options(command):
    for option in reversed(tensorrt_options):
        command = option(command)
    return command


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--backend", required=True, help="tensorrt, tensorrt-rtx or aot-inductor.")
@gpu_option
@click.option("--precision", help="That of the graph to build.  [default: the bundle's first]")
@range_option
@click.option("--guidance/--no-guidance", default=None, help="Whether guidance doubles the batch.")
@click.option("--model", type=click.Path(path_type=Path), help="The exported model; for aot-inductor.")
@with_tensorrt_options
def build(bundle, backend, gpu, precision, ranges, guidance, model, **options) -> dict:
    """Build an engine of BUNDLE, unless it has one that differs in nothing."""
    from zeus_trt.export.build import build_engine
    from zeus_trt.export.tensorrt import TensorRTOptions
    from zeus_trt.export.verification import choose_trace

    if model and backend in ("tensorrt", "tensorrt-rtx"):
        raise click.UsageError(f"--model has no effect for {backend}, which reads the graph: leave it out")
    with show_progress() as on_progress:
        record = build_engine(
            bundle, backend, gpu=gpu, precision=precision, guidance=guidance, ranges=read_ranges(ranges),
            options=TensorRTOptions(**options), trace=choose_trace(bundle, model), on_progress=on_progress, say=say,
        )  # fmt: skip
    echo_engine(record)
    return json.loads(record.to_json())


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, of which nothing is left, whatever happens in the block; else a line for each thing done."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        yield _Lines().show
        return
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=100, leave=False, disable=is_on(QUIET), delay=0.2, file=sys.stderr, bar_format=form) as bar:

        def show(step: str, done: float) -> None:
            bar.set_description_str(step, refresh=False)
            bar.update(100 * done - bar.n)

        yield show


def say(text: str) -> None:
    """Prints a remark above the bar."""
    from tqdm import tqdm

    if sys.stderr.isatty() and not is_on(QUIET):
        tqdm.write(escape(text), file=sys.stderr)
    else:
        say_remark(text)


class _Lines:
    """What a builder does, where no bar can be drawn."""

    def __init__(self) -> None:
        self._step = ""

    def show(self, step: str, done: float) -> None:
        if step != self._step:
            self._step = step
            say_remark(f"{step} ...")


def read_ranges(ranges) -> dict:
    from zeus_trt.export.profile import SizeRange

    names = [name for name, _, _ in ranges]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.UsageError(f"{twice[0]} has two ranges: give one of them")
    return {name: SizeRange(low, low, high) for name, low, high in ranges}


def echo_engine(record) -> None:
    spec, size = record.spec, record.size / 2**20
    click.echo(f"{spec.backend} {spec.precision} for {spec.target}: {size:.1f} MiB in {record.build_seconds} s")
