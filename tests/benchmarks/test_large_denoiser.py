"""The benchmark of `make test-gpu`, on the CPU with a tiny UNet: that it runs, and what it prints."""

import runpy

import pytest
import torch
from checkout import ROOT

BENCH = runpy.run_path(str(ROOT / "benchmarks" / "large_denoiser.py"))


@pytest.mark.slow
def test_runs_from_end_to_end():
    lines = []
    engines = ("eager", "cuda-graph", "cuda-graph-nhwc", "onnxruntime")
    result = BENCH["run"]("tiny", "cpu", engines, 1, lines.append)
    assert [row["denoiser"] for row in result["rows"]] == ["eager"] * 4 + ["onnxruntime"] * 4
    assert [row["nfe"] for row in result["rows"]] == [50, 27, 24, 22] * 2
    assert list(result["left_out"]) == ["cuda-graph", "cuda-graph-nhwc"]
    assert all(row["call_ms"] > 0 and row["ms"] > 0 for row in result["rows"])
    assert result["engines"]["onnxruntime"]["off_eager"] < 1e-4
    assert len(lines) == 2 + 1 + 2 + 1


@pytest.mark.slow
def test_a_package_is_built_once_for_the_engines_that_open_it(tmp_path):
    unet, inputs = BENCH["make_unet"]("tiny", "cpu")
    built = []
    for _ in range(2):
        with BENCH["open_engine"]("aot-inductor", unet, inputs, tmp_path) as engine:
            torch.testing.assert_close(engine(**inputs), unet(**inputs).sample, rtol=1e-3, atol=1e-4)
        built.append((tmp_path / "denoiser.pt2").stat().st_mtime_ns)
    assert built[0] == built[1]


def test_the_table_names_the_best_engine():
    def row(model, name, ratio, ms, over):
        return {"model": model, "denoiser": name, "ratio": ratio, "call_ms": 2.0, "ms": ms, "over_calls": over}

    rows = [row("sdxl", "eager", ratio, 100.0 - ratio, 0.01) for ratio in (0, 2, 3, 4)]
    rows += [row("sdxl", "cuda-graph", ratio, 25.0 - ratio, -0.03 if ratio == 3 else 0.01) for ratio in (0, 2, 3, 4)]
    rows += [row("sd21", "cuda-graph", ratio, 9.0, 0.0) for ratio in (0, 2, 3, 4)]
    lines = BENCH["tabulate"](rows)
    assert len(lines) == 1 + 3 + 1
    assert lines[2].split() == ["sdxl", "cuda-graph", "2.0", "25.0", "23.0", "22.0", "21.0", "-3.00%"]
    assert lines[4] == "sdxl: eager full loop 100.0 ms / cuda-graph at r = 4 21.0 ms: 4.76x"


def test_engines_leave_the_weights_as_they_were():
    unet, _ = BENCH["make_unet"]("tiny", "cpu")
    weight = unet.conv_in.weight
    BENCH["_lay_out"](unet, "cuda-graph-nhwc")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    BENCH["_lay_out"](unet, "cuda-graph")
    assert weight.is_contiguous()


@pytest.mark.slow
def test_compiled_blocks_say_the_same():
    unet, inputs = BENCH["make_unet"]("tiny", "cpu")
    expected = unet(**inputs).sample
    BENCH["_compile_blocks"](unet, inputs)
    compiled = [module for module in unet.modules() if module._compiled_call_impl is not None]
    assert {type(module).__name__ for module in compiled} == set(BENCH["BLOCKS"])
    torch.testing.assert_close(unet(**inputs).sample, expected, rtol=1e-3, atol=1e-4)
    BENCH["_lay_out"](unet, "eager")
    assert torch.equal(unet(**inputs).sample, expected)


def test_the_sizes_are_the_models_own():
    """Parameters of the published UNets, counted without making them."""
    import diffusers

    for model, published in (("sdxl", 2_567_463_684), ("sd21", 865_910_724)):
        with torch.device("meta"):
            unet = diffusers.UNet2DConditionModel(**BENCH["MODELS"][model]["config"])
        assert sum(parameter.numel() for parameter in unet.parameters()) == published
