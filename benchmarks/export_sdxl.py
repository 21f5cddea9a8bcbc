"""The SDXL UNet at its real size, captured, exported in fp16 and built by TensorRT-RTX: inside how much memory?

    python benchmarks/export_sdxl.py [--gpu sm_89] [--limit-gib 20]

2.57 billion random weights in fp16, 5.1 GB; no GPU is needed. Export and build are a process each, as `zeus-trt export`
and `zeus-trt build` are. Nothing is verified here: a reference in float32 and the graph in ONNX Runtime would hold
another 20 GB. Memory is the resident memory of all processes of a part together, looked at ten times a second; a part
above the limit is ended, and the result says how far it came. The last line is one JSON object.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click

CROSS, PLAIN, UP_CROSS, UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"
CONFIG = {
    "sample_size": 128, "cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20), "use_linear_projection": True,
    "block_out_channels": (320, 640, 1280), "down_block_types": (PLAIN, CROSS, CROSS),
    "up_block_types": (UP_CROSS, UP_CROSS, UP), "transformer_layers_per_block": (1, 2, 10),
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip


def make_pipeline():
    """SDXL without encoders and decoder; the UNet in fp16 from the start."""
    import diffusers
    import torch

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    unet = diffusers.UNet2DConditionModel(**CONFIG).eval()
    torch.set_default_dtype(torch.float32)
    names = ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    return diffusers.StableDiffusionXLPipeline(
        unet=unet, scheduler=diffusers.EulerDiscreteScheduler(), add_watermarker=False, **dict.fromkeys(names)
    )


def run(pipeline, *, batch, height, width, seed=0):
    """Three steps with guidance on random embeddings."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = {"prompt_embeds": (batch, 77, 2048), "pooled_prompt_embeds": (batch, 1280)}
    embeds = {f"{sign}{name}": torch.randn(size, generator=generator).half() for name, size in sizes.items()
              for sign in ("", "negative_")}  # fmt: skip
    return pipeline(**embeds, height=height, width=width, num_inference_steps=3, output_type="latent")


def export(bundle: Path, gpu: str) -> dict:
    from zeus_trt.export.capture import capture
    from zeus_trt.export.description import describe
    from zeus_trt.export.flat import export_capture
    from zeus_trt.export.folder import STEPS, open_folder, seal, write_solvers
    from zeus_trt.export.precision import cast_capture
    from zeus_trt.export.runs import Settings
    from zeus_trt.runtime.bundle.manifest import Graph, graph_name
    from zeus_trt.runtime.bundle.precision import Precision

    start = time.perf_counter()
    pipeline = make_pipeline()
    made = time.perf_counter()
    settings = Settings({"batch": 2, "height": 1024, "width": 768}, {"batch": 3, "height": 1152, "width": 896},
                        content={"seed": 1}, run=run)  # fmt: skip
    captured = capture(pipeline, settings)
    done = time.perf_counter()
    with open_folder(bundle, overwrite=False) as folder:
        cast = cast_capture(captured, "fp16")
        limits, _ = export_capture(cast, folder / graph_name("fp16"))
        write_solvers(pipeline.scheduler, STEPS, folder)
        manifest = describe(cast, limits, Graph(Precision.FP16), model="sdxl", prediction_type="epsilon")
        files = seal(manifest, folder).files
    return {
        "parameters": sum(parameter.numel() for parameter in pipeline.unet.parameters()),
        "making_seconds": round(made - start, 1), "capture_seconds": round(done - made, 1),
        "export_seconds": round(time.perf_counter() - done, 1),
        "bundle_mib": round(sum(entry.size for entry in files.values()) / 2**20),
    }  # fmt: skip


def build(bundle: Path, gpu: str) -> dict:
    from zeus_trt.export.build import build_engine
    from zeus_trt.export.profile import SizeRange

    side = SizeRange(96, 128, 128)
    record = build_engine(
        bundle, "tensorrt-rtx", gpu=gpu, ranges={"batch": SizeRange(1, 1, 1), "height": side, "width": side},
        on_progress=lambda step, done: click.echo(f"  {done:4.0%} {step}", err=True),
    )  # fmt: skip
    return {"build_seconds": record.build_seconds, "engine_mib": round(record.size / 2**20)}


PARTS = {"export": export, "build": build}


def measure_session(session: int) -> dict[str, float]:
    """Resident MiB of every process of a session, by its command."""
    found: dict[str, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration, ValueError):
            if os.getsid(int(folder.name)) == session:
                line = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("VmRSS"))
                found[folder.name] = int(line.split()[1]) / 1024
    return found


def watch(part: str, words: list[str], limit_gib: float) -> dict:
    """Runs a part in a session of its own: what it reports, and its peaks."""
    command = [sys.executable, __file__, "--part", part, *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    peak, inner, stopped = 0.0, 0.0, False
    start = time.perf_counter()
    try:
        while child.poll() is None:
            resident = measure_session(child.pid)
            if sum(resident.values()) > peak:
                peak = sum(resident.values())
            inner = max([inner, *(mib for pid, mib in resident.items() if int(pid) != child.pid)])
            if peak > limit_gib * 1024:
                stopped = True
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    done = (
        json.loads(lines[-1]) if child.wait() == 0 else {"failed": "memory" if stopped else f"exit {child.returncode}"}
    )
    peaks = {"peak_mib": round(peak), "peak_mib_of_the_builder": round(inner)} if inner else {"peak_mib": round(peak)}
    return {**done, **peaks, "seconds": round(time.perf_counter() - start, 1)}


@click.command()
@click.option("--gpu", default="sm_89", show_default=True)
@click.option("--limit-gib", default=20.0, show_default=True)
@click.option("--bundle", type=click.Path(path_type=Path), help="Where to keep the bundle.  [default: nowhere]")
@click.option("--part", type=click.Choice(list(PARTS)), hidden=True)
def main(gpu: str, limit_gib: float, bundle: Path | None, part: str | None) -> None:
    if part:
        assert bundle
        click.echo(json.dumps(PARTS[part](bundle, gpu)))
        return
    from zeus_trt.machine import describe_machine

    with tempfile.TemporaryDirectory() as folder:
        place = bundle or Path(folder) / "sdxl"
        rows = {}
        for name in PARTS:
            if name == "export" and place.exists():
                continue
            rows[name] = watch(name, ["--gpu", gpu, "--bundle", str(place)], limit_gib)
            click.echo(json.dumps({name: rows[name]}), err=True)
            if "failed" in rows[name]:
                break
    head = {"benchmark": "export_sdxl", "gpu": gpu, "limit_gib": limit_gib}
    click.echo(json.dumps({**head, "machine": describe_machine(), **rows}))


if __name__ == "__main__":
    main()
