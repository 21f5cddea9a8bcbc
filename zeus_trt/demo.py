"""The demo: a trained model from export to pictures."""

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import torch

from zeus_trt.calibration import Comparison, compare_ratios
from zeus_trt.export import export_bundle
from zeus_trt.runtime import Session


def run_demo(
    output: Path, *, on_call: Callable[[], None] | None = None, say: Callable[[str], None] = print
) -> Comparison:
    """Exports the digits UNet that ships with the package, and compares r = 0, 2, 3, 4.

    Args:
        output: Folder for ``bundle``, ``grid.png`` and ``comparison.json``; a bundle that is
            there from an earlier demo is replaced.
        on_call: Called after every engine call.
        say: Takes a line of progress.
    """
    say("exporting the digits model to ONNX, and verifying it (10-20 s) ...")
    with as_file(files("zeus_trt.demo_models") / "digits-unet-flow") as model:
        bundle = export_bundle(model, output / "bundle", overwrite=True)
    say("sampling 10 digits with r = 0, 2, 3, 4 ...")
    return compare_ratios(
        Session(bundle),
        {"class_labels": torch.arange(10)},
        ratios=(0, 2, 3, 4),
        num_steps=50,
        guidance_scale=2.0,
        seed=7,
        rounds=2,
        output=output,
        on_call=on_call,
    )
