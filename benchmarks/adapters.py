"""A LoRA in an engine without an export: how exact it is, and what it takes beside an export. Needs peft.

python benchmarks/adapters.py [sdxl sd3 flux wan] [--threads 1] [--rounds 5]

Tiny pipelines with random weights (`examples/tiny_pipeline.py`, `examples/tiny_lora.py`), float32, ONNX Runtime on the
CPU, ratio 0. Errors are |engine - pipeline| / |pipeline| of pictures with the adapter active. Seconds of a swap are
those of opening a session with another adapter, medians; those of an export are of one run. The last line is one JSON
object.
"""

import argparse
import json
import runpy
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import numpy as np
import torch

from zeus_trt import Session, accelerate, add_adapter, export_model
from zeus_trt.machine import describe_machine

EXAMPLES = Path(__file__).parent.parent / "examples"
SCALE = 0.8


def make_picture(pipeline: Any) -> np.ndarray:
    """Latents of a run of four steps."""
    sizes = {"num_frames": 9} if "Wan" in type(pipeline).__name__ else {}
    generator = torch.Generator().manual_seed(0)
    made = pipeline(
        "a cat", num_inference_steps=4, height=128, width=128, generator=generator, output_type="latent", **sizes
    )
    return np.asarray(made[0])


def measure(family: str, folder: Path, rounds: int) -> dict[str, Any]:
    """A row of the table."""
    model, bundle = folder / family, folder / f"{family}-bundle"
    runpy.run_path(str(EXAMPLES / "tiny_pipeline.py"))["write_pipeline"](model, family)
    write_lora = runpy.run_path(str(EXAMPLES / "tiny_lora.py"))["write_lora"]
    pipeline = diffusers.DiffusionPipeline.from_pretrained(model)
    pipeline.set_progress_bar_config(disable=True)
    began = time.perf_counter()
    export_model(pipeline, bundle, sizes=[(128, 128)], steps=())
    row: dict[str, Any] = {"family": family, "export_seconds": time.perf_counter() - began, "add_seconds": []}
    for seed, name in enumerate(("ink", "style")):
        write_lora(model, folder / name, seed)
        began = time.perf_counter()
        add_adapter(bundle, folder / name / "pytorch_lora_weights.safetensors", name, scale=SCALE)
        row["add_seconds"].append(time.perf_counter() - began)
    errors, swaps, made = [], [], {}
    for count in range(rounds):
        for name in ("ink", "style"):
            began = time.perf_counter()
            with Session(bundle, backend="onnxruntime", adapter=name) as session:
                swaps.append(time.perf_counter() - began)
                if count > 1:  # twice suffices to see that it comes back
                    continue
                pipeline.load_lora_weights(folder / name / "pytorch_lora_weights.safetensors", adapter_name=name)
                pipeline.set_adapters(name, SCALE)
                expected = make_picture(pipeline)
                with accelerate(pipeline, 0, engine=session) as fast:
                    picture = make_picture(fast)
                pipeline.unload_lora_weights()
            errors.append(float(np.linalg.norm(picture - expected) / np.linalg.norm(expected)))
            made.setdefault(name, []).append(picture)
    same = all(np.array_equal(first, second) for first, second in made.values())
    return row | {"swap_seconds": statistics.median(swaps), "error": max(errors), "is_restored_to_the_bit": same}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures adapters in engines.")
    parser.add_argument("families", nargs="*", default=["sdxl", "sd3", "flux", "wan"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with TemporaryDirectory() as folder:
        rows = [measure(family, Path(folder), asked.rounds) for family in asked.families]
    for row in rows:
        print(
            f"{row['family']:<6} error {row['error']:.1e}, restored to the bit {row['is_restored_to_the_bit']}, swap "
            f"{row['swap_seconds']:.2f} s, add {statistics.median(row['add_seconds']):.2f} s, export "
            f"{row['export_seconds']:.1f} s"
        )
    print(json.dumps({"machine": describe_machine(), "threads": asked.threads, "rows": rows}))


if __name__ == "__main__":
    main()
