"""A denoiser of real size through the program loop: what a call costs in every engine, and what skipping saves.

    python benchmarks/large_denoiser.py [--model sdxl|sd21|tiny] [--device cuda|cpu] [--engines eager,cuda-graph,...]

The weights are random, at the model's real sizes, in fp16 (float32 on a CPU): the figures are of speed alone and say
nothing about pictures (`zeus-trt compare` measures quality, on a trained model). Guidance doubles the batch. A loop's
total is compared with NFE times one call; medians over interleaved rounds. `tiny` is a small UNet that shows that this
runs. Engines: eager, cuda-graph (the same, replayed), aot-inductor and onnxruntime (both traced here, which takes
minutes for a large model), each left out with its reason where it does not run. The last line is one JSON object.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import click
import diffusers
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import ClassifierFreeGuidance, EagerEngine, Engine, OnnxRuntimeEngine, ProgramLoop, draw_noise
from zeus_trt.runtime.engine_profile import ShapeRange
from zeus_trt.runtime.manifest import TensorSpec, name_dtype
from zeus_trt.zeus_graph import StepPlan, fold, trace

NUM_STEPS, RATIOS, CALLS = 50, (0, 2, 3, 4), 10
ENGINES = ("eager", "cuda-graph", "aot-inductor", "onnxruntime")
CROSS, PLAIN, UP_CROSS, UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "latents": (4, 16, 16), "context": (7, 16), "config": {
            "sample_size": 16, "cross_attention_dim": 16, "attention_head_dim": 2, "block_out_channels": (8, 16),
            "norm_num_groups": 4, "layers_per_block": 1, "down_block_types": (PLAIN, CROSS),
            "up_block_types": (UP_CROSS, UP),
        },
    },
    "sd21": {
        "latents": (4, 96, 96), "context": (77, 1024), "config": {
            "sample_size": 96, "cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
        },
    },
    "sdxl": {
        "latents": (4, 128, 128), "context": (77, 2048), "config": {
            "sample_size": 128, "cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20),
            "use_linear_projection": True, "block_out_channels": (320, 640, 1280),
            "down_block_types": (PLAIN, CROSS, CROSS), "up_block_types": (UP_CROSS, UP_CROSS, UP),
            "transformer_layers_per_block": (1, 2, 10), "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
        },
    },
}  # fmt: skip


def make_unet(model: str, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The UNet with random weights, and its inputs for two rows, the latents first."""
    torch.manual_seed(0)
    dtype = torch.float16 if device == "cuda" else torch.float32
    with torch.device(device):
        unet = diffusers.UNet2DConditionModel(**MODELS[model]["config"]).to(dtype).eval()
        inputs = {
            "sample": torch.randn(2, *MODELS[model]["latents"]).to(dtype),
            "timestep": torch.full((2,), 500.0),
            "encoder_hidden_states": torch.randn(2, *MODELS[model]["context"]).to(dtype),
        }
        if model == "sdxl":
            inputs |= {"text_embeds": torch.randn(2, 1280).to(dtype), "time_ids": torch.full((2, 6), 1024.0).to(dtype)}
    return unet, inputs


def nest(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Where SDXL's forward wants them."""
    added = {name: inputs[name] for name in ("text_embeds", "time_ids") if name in inputs}
    own = {name: value for name, value in inputs.items() if name not in added}
    return {**own, **({"added_cond_kwargs": added} if added else {})}


class Positional(torch.nn.Module):
    """The UNet as a function of positional tensors that returns one, to be traced."""

    def __init__(self, unet: torch.nn.Module, names: list[str]):
        super().__init__()
        self.unet, self.names = unet, names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.unet(**nest(dict(zip(self.names, values, strict=True))), return_dict=False)[0]


def open_engine(name: str, unet: torch.nn.Module, inputs: dict[str, torch.Tensor], folder: Path) -> Engine:
    """Makes an engine of two rows.

    Raises:
        ZeusError: It does not run here.
    """
    device = inputs["sample"].device.type
    specs = [TensorSpec(key, name_dtype(value), tuple(value.shape)) for key, value in inputs.items()]
    if name in ("eager", "cuda-graph"):
        return EagerEngine(unet, specs, nest, cuda_graph=name == "cuda-graph")
    from zeus_trt.export.aot_inductor import build_package, trace_program

    if name == "onnxruntime":
        from zeus_trt.export.graph import write_graph

        provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
        _check_provider(provider)
        program = trace_program(Positional(unet, list(inputs)).eval(), inputs, specs)
        write_graph(program, list(inputs), [*(spec.axes for spec in specs), specs[0].axes], folder / "denoiser.onnx")
        return OnnxRuntimeEngine(folder / "denoiser.onnx", provider)
    from zeus_trt.runtime.aot_engine import AotEngine

    build_package(trace_program(Positional(unet, list(inputs)).eval(), inputs, specs), folder / "denoiser.pt2")
    profile = {spec.name: ShapeRange(shape, shape, shape) for spec in specs for shape in [tuple(map(int, spec.axes))]}
    return AotEngine(folder / "denoiser.pt2", specs, profile, inputs["sample"].device)


def _check_provider(provider: str) -> None:
    try:
        import onnxruntime
    except ImportError as error:
        raise ZeusError("onnxruntime: got no such package; expected onnxruntime-gpu. Install it.") from error
    if provider not in onnxruntime.get_available_providers():
        raise ZeusError(f"onnxruntime: got no {provider}; expected onnxruntime-gpu. Install it.")


def measure_ms(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one run, on the device where there is one."""
    if device == "cpu":
        begin = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - begin)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def bench(engine: Engine, inputs: dict[str, torch.Tensor], rounds: int) -> Iterator[dict[str, Any]]:
    """A row per ratio."""
    device = inputs["sample"].device.type
    conditioning = {name: value[:1] for name, value in inputs.items() if name not in ("sample", "timestep")}
    guided = ClassifierFreeGuidance(engine, 5.0, {name: torch.zeros_like(v) for name, v in conditioning.items()})
    noise = draw_noise((1, *inputs["sample"].shape[1:]), seed=0).to(device)
    solver = trace(diffusers.DPMSolverMultistepScheduler(), NUM_STEPS)
    plans = {ratio: StepPlan.uniform(NUM_STEPS, ratio) for ratio in RATIOS}
    loops = {ratio: ProgramLoop(fold(solver, plan), noise) for ratio, plan in plans.items()}
    for _ in range(3):
        engine(**inputs)  # warm-up: libraries choose their algorithms, graphs are captured
    times: dict[int, list[float]] = {ratio: [] for ratio in RATIOS}
    calls: list[float] = []
    for _ in range(rounds):
        calls += [measure_ms(lambda: engine(**inputs), device) for _ in range(CALLS)]
        for ratio, loop in loops.items():
            times[ratio].append(measure_ms(lambda loop=loop: loop.run(guided, noise, conditioning), device))
    call = median(calls)
    for ratio, plan in plans.items():
        total = median(times[ratio])
        speedups = [full / skipped for full, skipped in zip(times[0], times[ratio], strict=True)]
        yield {
            "ratio": ratio, "nfe": plan.nfe, "call_ms": round(call, 2), "ms": round(total, 1),
            "ms_min": round(min(times[ratio]), 1), "ms_max": round(max(times[ratio]), 1),
            "over_calls": round(total / (plan.nfe * call) - 1, 4),
            "speedup": round(median(speedups), 3), "bound": round(plan.speedup_bound, 3),
        }  # fmt: skip


@torch.inference_mode()
def run(model: str, device: str, engines: tuple[str, ...], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures every engine that runs here.

    Args:
        model: One of ``MODELS``.
        device: ``cuda`` or ``cpu``.
        engines: Of ``ENGINES``.
        rounds: Interleaved rounds.
        say: Told the table, a line at a time.
    """
    unet, inputs = make_unet(model, device)
    rows, absent = [], {}
    titles = f"{'engine':<14}{'ratio':>6}{'NFE':>5}{'call ms':>10}{'loop ms':>10}"
    say(f"{titles}{'over calls':>12}{'speed-up':>10}{'bound':>8}")
    for name in engines:
        with tempfile.TemporaryDirectory() as folder:
            try:
                engine = open_engine(name, unet, inputs, Path(folder))
            except ZeusError as error:
                absent[name] = str(error)
                say(f"{name:<14}left out: {error}")
                continue
            with engine:
                for row in bench(engine, inputs, rounds):
                    rows.append({"denoiser": name, **row})
                    say(
                        f"{name:<14}{row['ratio']:>6}{row['nfe']:>5}{row['call_ms']:>10}{row['ms']:>10}"
                        f"{row['over_calls']:>12.2%}{row['speedup']:>9}x{row['bound']:>7}x"
                    )
    peak = torch.cuda.max_memory_allocated() // 2**20 if device == "cuda" else None
    parameters = sum(parameter.numel() for parameter in unet.parameters())
    settings = {"model": model, "device": device, "parameters": parameters, "latents": MODELS[model]["latents"]}
    head = {"benchmark": "large_denoiser", **settings, "rounds": rounds, "peak_mib": peak, "left_out": absent}
    return {**head, "machine": describe_machine(), "rows": rows}


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="sdxl", show_default=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--engines", default="eager,cuda-graph", show_default=True, help=f"Of {','.join(ENGINES)}.")
@click.option("--rounds", default=3, show_default=True)
def main(model: str, device: str, engines: str, rounds: int) -> None:
    click.echo(json.dumps(run(model, device, tuple(engines.split(",")), rounds, click.echo)))


if __name__ == "__main__":
    main()
