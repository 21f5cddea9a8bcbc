"""What 8 bits cost, and what skipping costs on top of them, on the digits models.

python benchmarks/quantization.py BUNDLE... [--precision int8] [--threads 1]

Each bundle has the graph already (`zeus-trt quantize BUNDLE --precision int8`). PSNR is the mean over 64 samples that
no quantization saw by default (seeds 0-63), guidance 2, N = 50. Call times are medians of pairs, one call of each graph
after the other, at the batch of 8 guided samples. The last line is one JSON object.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Session
from zeus_trt.zeus_graph import choose_plan

STEPS, SAMPLES, BATCH, RATIOS, PAIRS = 50, 64, 16, (0, 2, 3, 4), 31


def sample(session: Session, ratio: int) -> torch.Tensor:
    """Images of all samples, (sample, channels, height, width) in -1..1."""
    parts = []
    for start in range(0, SAMPLES, BATCH):
        seeds = list(range(start, start + BATCH))
        labels = session.label_images(seeds and [seed % 10 for seed in seeds], BATCH)
        plan = choose_plan(ratio=ratio)(STEPS)
        made = session.generate(labels, plan=plan, num_steps=STEPS, seed=seeds, guidance_scale=2.0)
        parts.append(made.latents.float().clamp(-1, 1))
    return torch.cat(parts)


def time_calls(engine: Any, other: Any, session: Session) -> dict[str, float]:
    """Milliseconds of a call of each, and the median ratio of pairs with its quartiles."""
    batch = 16
    latents = torch.randn(batch, *session.bundle.manifest.latent_shape)
    name = session.bundle.manifest.latents.name
    inputs = {name: latents, "timestep": torch.full((batch,), 500.0), "class_labels": torch.arange(batch) % 10}

    def measure(one: Any) -> float:
        start = time.perf_counter()
        one(**inputs)
        return 1000 * (time.perf_counter() - start)

    for one in (engine, other):
        measure(one)
    pairs = [(measure(engine), measure(other)) for _ in range(PAIRS)]
    ratios = sorted(second / first for first, second in pairs)
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
    return {"float_ms": medians[0], "quantized_ms": medians[1], "ratio": middle, "low": low, "high": high}


def measure(bundle: Path, precision: str) -> dict[str, Any]:
    """All figures of a bundle."""
    sessions = {name: Session(bundle, backend="onnxruntime", precision=name) for name in ("fp32", precision)}
    images = {name: {ratio: sample(session, ratio) for ratio in RATIOS} for name, session in sessions.items()}
    own, other = images["fp32"], images[precision]
    files = sessions["fp32"].bundle.manifest.files
    sizes = {name: sum(e.size for f, e in files.items() if f.startswith(f"graphs/{name}/denoiser")) for name in images}
    row: dict[str, Any] = {"model": sessions["fp32"].bundle.manifest.model, "bytes": sizes}
    for ratio in RATIOS:
        row[f"r{ratio}"] = {
            "to_float_same_ratio": measure_psnr(other[ratio], own[ratio]),
            "float_to_its_full": measure_psnr(own[ratio], own[0]) if ratio else None,
            "quantized_to_its_full": measure_psnr(other[ratio], other[0]) if ratio else None,
            "quantized_to_float_full": measure_psnr(other[ratio], own[0]),
        }
    row["call"] = time_calls(sessions["fp32"].engine, sessions[precision].engine, sessions["fp32"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = []
    for bundle in asked.bundles:
        rows.append(measure(bundle, asked.precision))
        print(json.dumps(rows[-1]), flush=True)
    settings = {"precision": asked.precision, "threads": asked.threads, "steps": STEPS, "samples": SAMPLES}
    print(json.dumps({**settings, "machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
