"""The demo: a trained model from export to pictures."""

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeus_trt.evaluation.comparison import Comparison


def run_demo(
    output: Path,
    *,
    num_images: int = 16,
    rounds: int = 9,
    on_run: Callable[[int], None] | None = None,
    say: Callable[[str], None] = print,
) -> "Comparison":
    """Exports the digits UNet that ships with the package, and compares r = 0, 2, 3, 4.

    Times are those of one digit, so that a round is over before the machine's speed changes.

    Args:
        output: Folder for ``bundle`` and the report; the results of an earlier demo of the same versions are kept.
        num_images: Digits of each run.
        rounds: Timed runs of each ratio.
        on_run: Called with the number of full steps after every run.
        say: Takes a line of progress.
    """
    from zeus_trt.comparing import open_compared
    from zeus_trt.evaluation.compare import compare
    from zeus_trt.evaluation.options import MeasureOptions
    from zeus_trt.evaluation.variants import Grid, make_variants
    from zeus_trt.repeat import write_command

    say("exporting the digits model to ONNX, and verifying it (10-20 s) ...")
    with as_file(files("zeus_trt.demo_models") / "digits-unet-flow") as model:
        subject = open_compared(model, output, backends=("onnxruntime",), seed=7)
    say(f"sampling {num_images} digits with r = 0, 2, 3, 4 ...")
    options = MeasureOptions(num_images, rounds, timed_images=1)
    command = write_command("demo", run_demo, output=output, num_images=num_images, rounds=rounds)
    variants = make_variants(subject.workload, Grid())
    return compare(subject, variants, options, output=output, on_run=on_run, command=command)
