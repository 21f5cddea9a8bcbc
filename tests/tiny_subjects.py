"""A calibrated plan, and a model without class labels."""

from pathlib import Path

import torch

from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured

CALIBRATED = "FFXRFXRF"


def make_calibrated(workload=None, fingerprint: str = "0" * 64) -> CalibratedPlan:
    """A plan of eight steps with a table of its own."""
    rows = {2: {1: 1.5, 0: -0.5}, 3: {1: 1.0}, 5: {4: 1.25, 1: -0.25}, 6: {4: 1.0}}
    measured = Measured(Plan(CALIBRATED, Predictor.from_table(rows)), 40.0)
    uniform = Measured(Plan(CALIBRATED, Predictor()), 38.0)
    numbers = {"trajectories": (0, 1), "validation": (1, 1), "held_out": (2, 1)}
    return CalibratedPlan(
        measured, True, 41.0, (uniform,), 8, "default", fingerprint, "onnxruntime", workload or {}, numbers,
        {"recording": 8, "measuring": 16},
    )  # fmt: skip


def write_calibrated(path: Path) -> CalibratedPlan:
    """The same in a file."""
    made = make_calibrated()
    made.save(path)
    return made


def write_unlabelled(folder: Path) -> Path:
    """A model folder whose denoiser takes no class labels."""
    from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8,), norm_num_groups=4,
        layers_per_block=1, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    )  # fmt: skip
    unet.save_pretrained(folder / "unet")
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    return folder
