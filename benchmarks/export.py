"""What a capture, its ONNX export and its engines cost, against torch.onnx.export alone on the same call.

    python benchmarks/export.py

Every family (a tiny random pipeline of the tests) and every way runs in a process of its own. `capture` runs the
pipeline with its denoiser imitated; `export` writes the captured denoiser as ONNX; `torch` is torch.onnx.export of the
denoiser with the call already known and every axis that moved declared dynamic, which takes for granted what capture
finds out. `rtx` builds a TensorRT-RTX engine for sm_89 from that graph, and `aot` an AOTInductor package for this CPU
from the denoiser, both with the default profile. Peak is the resident memory above what the process had before; of the
largest child process, such as a builder or a compiler, it is all that it had. The last line is one JSON object.
"""

import contextlib
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import torch

from zeus_trt.evaluation.memory import peak_memory_mib, reset_peak_memory
from zeus_trt.export.build import build_engine
from zeus_trt.export.capture import capture
from zeus_trt.export.description import describe
from zeus_trt.export.flat import export_capture, trace_flat
from zeus_trt.export.folder import seal
from zeus_trt.export.graph import OPSET, quiet
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.manifest import Graph, graph_name
from zeus_trt.runtime.bundle.precision import Precision

FAMILIES = ("sd15", "sdxl", "sd3", "flux", "pixart", "wan")
WAYS = ("capture", "export", "torch", "rtx", "aot")


class Plain(torch.nn.Module):
    """A denoiser as a function of the captured values, and no more than that."""

    def __init__(self, captured):
        super().__init__()
        self.denoiser, self._nest = captured.denoiser, captured.nest

    def forward(self, *values):
        return self.denoiser(**self._nest(values))[0]


def export_alone(captured, path: Path) -> None:
    """What one would write by hand around torch.onnx.export."""
    dynamic = torch.export.Dim.DYNAMIC
    axes = tuple(
        dynamic if spec.value else {axis: dynamic for axis, size in enumerate(spec.axes) if isinstance(size, str)}
        for spec in captured.inputs
    )
    with quiet():
        program = torch.onnx.export(
            Plain(captured).eval(), captured.examples, dynamo=True,
            dynamic_shapes=(axes,), opset_version=OPSET, verbose=False,
        )  # fmt: skip
        program.save(path, external_data=True)


def make_bundle(captured, folder: Path) -> Bundle:
    limits, _ = export_capture(captured, folder / graph_name("fp32"))
    manifest = describe(captured, limits, Graph(Precision.FP32), model="tiny", prediction_type="epsilon")
    return Bundle(folder, seal(manifest, folder))


def measure(family: str, way: str) -> dict[str, float | str]:
    """Seconds and MiB of one way; why not, where it fails."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "export"))
    from pipelines import FAMILIES as KNOWN

    torch.set_num_threads(1)
    pipeline = KNOWN[family].make()
    if way != "capture":
        captured = capture(pipeline, KNOWN[family].settings)
    work = {
        "capture": lambda folder: capture(pipeline, KNOWN[family].settings),
        "export": lambda folder: export_capture(captured, folder / graph_name("fp32")),
        "torch": lambda folder: export_alone(captured, folder / graph_name("fp32")),
        "rtx": lambda folder: build_engine(bundle, "tensorrt-rtx", gpu="sm_89"),
        "aot": lambda folder: build_engine(bundle, "aot-inductor", trace=lambda: trace_flat(captured)),
    }[way]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        if way in ("rtx", "aot"):
            bundle = make_bundle(captured, Path(folder))
        reset_peak_memory()
        before, start = peak_memory_mib(), time.perf_counter()
        try:
            work(Path(folder))
        except Exception as error:  # what torch alone makes of a family is the finding
            reason = re.sub(r"\x1b\[\d+m", "", str(error).strip().splitlines()[0])
            return {"error": f"{type(error).__name__}: {reason[:100]}"}
        seconds, mib = time.perf_counter() - start, peak_memory_mib() - before
    return {"seconds": seconds, "mib": mib, "child_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--child", nargs=2, hidden=True)
def main(rounds: int, child: tuple[str, str] | None) -> None:
    if child:
        click.echo(json.dumps(measure(*child)))
        return
    rows = []
    for family in FAMILIES:
        row: dict[str, object] = {"family": family}
        for way in WAYS:
            command = [sys.executable, __file__, "--child", family, way]
            runs = [json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(rounds)]
            if error := next((run["error"] for run in runs if "error" in run), None):
                row[way] = {"error": error}
                continue
            seconds, mib, child = ([run[name] for run in runs] for name in ("seconds", "mib", "child_mib"))
            spread = {"min": round(min(seconds), 2), "max": round(max(seconds), 2)}
            peaks = {"mib": round(median(mib), 1)} | ({"child_mib": round(median(child), 1)} if any(child) else {})
            row[way] = {"seconds": round(median(seconds), 2), **spread, **peaks}
        rows.append(row)
        click.echo(json.dumps(row))
    head = {"benchmark": "export", "rounds": rounds, "threads": 1}
    click.echo(json.dumps({**head, "machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
