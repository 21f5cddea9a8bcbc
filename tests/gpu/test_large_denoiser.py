"""UNets of real size, random weights in fp16: the table of engines and ratios, and what a skipped step costs.

Run by `make test-gpu` on a machine with CUDA; it has not been run on one in this form yet.
"""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = {
    "sdxl": ("eager", "cuda-graph"),  # too large to compile and export within minutes
    "sd21": ("eager", "cuda-graph", "aot-inductor", "onnxruntime"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("model", CASES)
def test_a_loop_costs_its_calls(model, capsys):
    bench = runpy.run_path(str(ROOT / "benchmarks" / "large_denoiser.py"))

    def say(line):
        with capsys.disabled():
            print(f"{model:<6}{line}", flush=True)

    result = bench["run"](model, "cuda", CASES[model], 2, say)
    say(json.dumps(result))
    graphed = [row for row in result["rows"] if row["denoiser"] != "eager"]
    assert graphed
    for row in graphed:  # an eager denoiser is bound by launches, whose times vary
        assert abs(row["over_calls"]) < 0.02, row
