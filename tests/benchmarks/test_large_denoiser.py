"""The benchmark of `make test-gpu`, on the CPU with a tiny UNet: that it runs, and what it prints."""

import runpy

from checkout import ROOT

BENCH = runpy.run_path(str(ROOT / "benchmarks" / "large_denoiser.py"))


def test_runs_from_end_to_end():
    lines = []
    result = BENCH["run"]("tiny", "cpu", ("eager", "cuda-graph", "onnxruntime"), 1, lines.append)
    assert [row["denoiser"] for row in result["rows"]] == ["eager"] * 4 + ["onnxruntime"] * 4
    assert [row["nfe"] for row in result["rows"]] == [50, 27, 24, 22] * 2
    assert list(result["left_out"]) == ["cuda-graph"]
    assert all(row["call_ms"] > 0 and row["ms"] > 0 for row in result["rows"])
    assert len(lines) == 10


def test_the_sizes_are_the_models_own():
    """Parameters of the published UNets, counted without making them."""
    import diffusers
    import torch

    for model, published in (("sdxl", 2_567_463_684), ("sd21", 865_910_724)):
        with torch.device("meta"):
            unet = diffusers.UNet2DConditionModel(**BENCH["MODELS"][model]["config"])
        assert sum(parameter.numel() for parameter in unet.parameters()) == published
