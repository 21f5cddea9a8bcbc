"""UNets of real size, random weights in fp16: the table of engines and ratios, and what a skipped step costs.

AOTInductor takes longer over SDXL than `make test-gpu` may take in all: ZEUS_GPU_SDXL_AOT=1 adds it, at some 8 minutes.
Estimates on one H100 with 16 cores: SDXL 30 s to make and measure eager, 15 s per graph, a
minute or two to compile its blocks; SD 2.1 10 s per engine, and 3 minutes to compile its package, which two engines
open. ONNX Runtime, where it has CUDA, takes 2 minutes. It has not been run on a GPU in this form yet.
"""

import math
import os

import pytest

AOT = ("aot-inductor", "aot-inductor-graph")
CASES = [
    *(("sdxl", name) for name in ("eager", "cuda-graph", "cuda-graph-nhwc", "cuda-graph-compiled")),
    *(("sd21", name) for name in ("eager", "cuda-graph", "cuda-graph-nhwc", *AOT, "onnxruntime")),
    *(("sdxl", name) for name in AOT if os.environ.get("ZEUS_GPU_SDXL_AOT")),
]
if os.environ.get("ZEUS_GPU_TESTS_ON") == "cpu":  # a dry run has one tiny model in the place of all: each engine once
    CASES = list({name: (model, name) for model, name in CASES}.values())


@pytest.mark.parametrize(("model", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_a_loop_costs_its_calls(model, name, device, bench, unet_of, folder_of, keep_figures):
    model = model if device.type == "cuda" else "tiny"  # in a dry run
    unet, inputs = unet_of(model, device.type)
    try:
        figures = bench["measure"](model, name, unet, inputs, folder_of(model), 2)
    except bench["LeftOut"] as error:
        pytest.skip(str(error))
    keep_figures(f"{model}-{name}", figures)
    assert math.isfinite(figures["off_eager"])
    assert figures["off_eager"] < 2e-2, figures["off_eager"]
    for row in figures["rows"]:
        assert row["ms"] > 0
        if device.type == "cuda" and name != "eager":  # an eager denoiser is bound by launches, whose times vary
            assert abs(row["over_calls"]) < 0.02, row
