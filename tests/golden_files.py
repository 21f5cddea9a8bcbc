"""Writes the golden files anew: run it only when the format changes, and raise the format's number then.

``quantization.json`` is a copy of what ``test_adds_a_graph_that_runs`` gets for int8; its keys and types count.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import diffusers
import torch
from engine_samples import SPEC, make_record
from small_bundle import LATENTS, STEPS, write_bundle
from tiny_subjects import write_calibrated

from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.zeus_graph import Plan, fold, trace

GOLDEN = Path(__file__).parent / "golden"
NOISE = torch.linspace(-1, 1, 2 * 16).view(2, *LATENTS)


def sample() -> torch.Tensor:
    """What the golden bundle makes of a fixed noise."""
    with Session(Bundle.open(GOLDEN / "bundle"), backend="onnxruntime") as session:
        return session.generate(num_steps=STEPS, plan=Plan("FFXRF"), noise=NOISE).latents


def main() -> None:
    """Writes every file."""
    shutil.rmtree(GOLDEN / "bundle", ignore_errors=True)
    write_bundle(GOLDEN / "bundle")
    program = fold(trace(diffusers.EulerDiscreteScheduler(), STEPS), Plan("FFXRF"))
    program.save(GOLDEN / "sampling_program.json")
    (GOLDEN / "plan.json").write_text(json.dumps(Plan("FFXRF").to_json()) + "\n")
    write_calibrated(GOLDEN / "calibrated_plan.json")
    (GOLDEN / "engine.json").write_text(make_record(replace(SPEC, precision=Precision.FP16)).to_json())
    (GOLDEN / "latents.json").write_text(json.dumps(sample().flatten().tolist()) + "\n")


if __name__ == "__main__":
    main()
