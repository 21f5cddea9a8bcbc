"""A denoiser of real size through the program loop: what a call costs in every engine, and what skipping saves.

    python benchmarks/large_denoiser.py [--model sdxl|sd21|tiny] [--device cuda|cpu] [--engines eager,cuda-graph,...]

The weights are random, at the model's real sizes, in fp16 (float32 on a CPU): the figures are of speed alone and say
nothing about pictures (`zeus-trt compare` measures quality, on a trained model). Guidance doubles the batch. A call is
timed among others, as in a loop, where the host runs ahead of the device; a loop's total is compared with NFE times
one call; medians over interleaved rounds. `tiny` is a small UNet that shows that this runs.

Engines, each left out with its reason where it does not run, and the memory that their weights lie in restored after:

    eager                the module itself
    cuda-graph           the same, replayed
    cuda-graph-nhwc      the same, its convolutions in channels_last memory, which fp16 on tensor cores wants
    cuda-graph-compiled  the same again, its repeated blocks compiled first (an estimated minute or two for SDXL)
    aot-inductor         compiled as a whole: an estimated 3 minutes for sd21 on 16 cores, longer for sdxl
    aot-inductor-graph   the same package, replayed
    onnxruntime          the traced graph in ONNX Runtime, on a GPU with its CUDA provider

The last line is one JSON object.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import diffusers
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import (
    ClassifierFreeGuidance,
    EagerEngine,
    Engine,
    OnnxRuntimeEngine,
    ProgramStepper,
    draw_noise,
)
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec, name_dtype
from zeus_trt.runtime.calls import ModelCall
from zeus_trt.runtime.loop import run as run_loop
from zeus_trt.zeus_graph import Plan, fold, trace

NUM_STEPS, RATIOS, CALLS = 50, (0, 2, 3, 4), 5
EAGER = ("eager", "cuda-graph", "cuda-graph-nhwc", "cuda-graph-compiled")
ENGINES = (*EAGER, "aot-inductor", "aot-inductor-graph", "onnxruntime")
BLOCKS = ("BasicTransformerBlock", "ResnetBlock2D")
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


class LeftOut(ZeusError):
    """What an engine needs is not here."""


def make_unet(model: str, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The UNet with random weights, and its inputs for two rows, the latents first."""
    torch.manual_seed(0)
    dtype = torch.float16 if device == "cuda" else torch.float32
    with torch.device(device):
        unet = diffusers.UNet2DConditionModel(**MODELS[model]["config"]).to(dtype).eval().requires_grad_(False)
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

    Args:
        name: One of ``ENGINES``.
        unet: Its memory layout changes with the engine, and its blocks are compiled or not.
        inputs: Of one call.
        folder: Where a package is built, unless it is there.

    Raises:
        LeftOut: What it needs is not here.
        ZeusError: It does not compile or load.
    """
    device = inputs["sample"].device
    specs = [TensorSpec(key, name_dtype(value), tuple(value.shape)) for key, value in inputs.items()]
    if "graph" in name and device.type != "cuda":
        raise LeftOut(f"{name}: got a module on {device}; expected one on a CUDA device. Leave it out.")
    _lay_out(unet, name)
    if name in EAGER:
        if name == "cuda-graph-compiled":
            _compile_blocks(unet, inputs)
        return EagerEngine(unet, specs, nest, cuda_graph=name != "eager")
    try:
        from zeus_trt.export.aot_inductor import build_package, trace_program
        from zeus_trt.export.graph import write_graph
    except ImportError as error:
        raise LeftOut(f"{name}: got no {error.name}; expected it for tracing. Install it.") from error
    trace_it = partial(trace_program, Positional(unet, list(inputs)).eval(), inputs, specs)
    if name == "onnxruntime":
        provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
        _check_provider(provider)
        axes = [*(spec.axes for spec in specs), specs[0].axes]
        write_graph(trace_it(), list(inputs), axes, folder / "denoiser.onnx")
        return OnnxRuntimeEngine(folder / "denoiser.onnx", provider)
    from zeus_trt.runtime.engines.aot_inductor import AotEngine

    package = folder / "denoiser.pt2"
    if not package.exists():
        build_package(trace_it(), package)
    profile = {spec.name: ShapeRange(shape, shape, shape) for spec in specs for shape in [tuple(map(int, spec.axes))]}
    return AotEngine(package, specs, profile, device, cuda_graph=name == "aot-inductor-graph")


def _lay_out(unet: torch.nn.Module, name: str) -> None:
    """Puts the weights where the engine wants them, and takes back what an engine before compiled."""
    is_nhwc = name in ("cuda-graph-nhwc", "cuda-graph-compiled")
    unet.to(memory_format=torch.channels_last if is_nhwc else torch.contiguous_format)
    for module in unet.modules():
        module._compiled_call_impl = None


def _compile_blocks(unet: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    torch._dynamo.config.recompile_limit = 64  # blocks of one class differ in their sizes
    for module in unet.modules():
        if type(module).__name__ in BLOCKS:
            module.compile(fullgraph=True, dynamic=False)
    try:
        unet(**nest(inputs))  # before anything is captured
    except Exception as error:  # Dynamo, Inductor and Triton each raise their own
        _lay_out(unet, "eager")
        reason = str(error).strip().splitlines()[0]
        raise ZeusError(f"cuda-graph-compiled: got blocks that do not compile ({reason}); expected Triton.") from error


def _check_provider(provider: str) -> None:
    try:
        import onnxruntime
    except ImportError as error:
        raise LeftOut("onnxruntime: got no such package; expected onnxruntime-gpu. Install it.") from error
    if provider not in onnxruntime.get_available_providers():
        raise LeftOut(f"onnxruntime: got no {provider}; expected onnxruntime-gpu. Install it.")


def measure_ms(run: Callable[[], object], device: str) -> float:
    """Milliseconds from the start to when the device is done."""
    _wait(device)
    begin = time.perf_counter()
    run()
    _wait(device)
    return 1000 * (time.perf_counter() - begin)


def measure_call_ms(engine: Engine, inputs: dict[str, torch.Tensor]) -> float:
    """Milliseconds of a call among others: with what the host does meanwhile, but for the first, as in a loop."""
    if inputs["sample"].device.type == "cpu":
        return measure_ms(lambda: engine(**inputs), "cpu")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    engine(**inputs)
    start.record()
    for _ in range(CALLS):
        engine(**inputs)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bench(engine: Engine, inputs: dict[str, torch.Tensor], rounds: int) -> Iterator[dict[str, Any]]:
    """A row per ratio."""
    device = inputs["sample"].device.type
    conditioning = {name: value[:1] for name, value in inputs.items() if name not in ("sample", "timestep")}
    guidance = ClassifierFreeGuidance(5.0, {name: torch.zeros_like(v) for name, v in conditioning.items()})
    noise = draw_noise((1, *inputs["sample"].shape[1:]), seed=0).to(device)
    solver = trace(diffusers.DPMSolverMultistepScheduler(), NUM_STEPS)
    plans = {ratio: Plan.uniform(NUM_STEPS, ratio) for ratio in RATIOS}
    steppers = {ratio: ProgramStepper(fold(solver, plan), noise) for ratio, plan in plans.items()}
    for _ in range(3):
        engine(**inputs)  # warm-up: libraries choose their algorithms, graphs are captured
    times: dict[int, list[float]] = {ratio: [] for ratio in RATIOS}
    calls: list[float] = []
    for _ in range(rounds):
        for ratio, stepper in steppers.items():
            calls.append(measure_call_ms(engine, inputs))
            model = ModelCall(engine, stepper, conditioning, guidance=guidance)
            times[ratio].append(measure_ms(lambda m=model, s=stepper: run_loop(m, s.restart(noise)), device))
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


@torch.no_grad()
def measure(
    model: str, name: str, unet: torch.nn.Module, inputs: dict[str, torch.Tensor], folder: Path, rounds: int
) -> dict[str, Any]:
    """Measures one engine: its rows, and how far its output is off the module's, relatively.

    Raises:
        LeftOut: What it needs is not here.
        ZeusError: It does not compile, load or run.
    """
    device = inputs["sample"].device.type
    settings = {"model": model, "device": device, "latents": MODELS[model]["latents"], "rounds": rounds}
    parameters = sum(parameter.numel() for parameter in unet.parameters())
    _lay_out(unet, "eager")
    expected = unet(**nest(inputs), return_dict=False)[0].float()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    with open_engine(name, unet, inputs, folder) as engine:
        off = float((engine(**inputs).float() - expected).norm() / expected.norm())
        seconds = round(time.perf_counter() - begin, 1)
        rows = [{"model": model, "denoiser": name, **row} for row in bench(engine, inputs, rounds)]
    peak = torch.cuda.max_memory_allocated() // 2**20 if device == "cuda" else None
    facts = {"parameters": parameters, "seconds_to_open": seconds, "off_eager": off, "peak_mib": peak}
    return {"benchmark": "large_denoiser", **settings, **facts, "machine": describe_machine(), "rows": rows}


def tabulate(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per model and engine, then what the best engine makes of each model."""
    titles = "".join(f"{f'r={ratio} ms':>10}" for ratio in RATIOS)
    lines = [f"{'model':<7}{'engine':<21}{'call ms':>9}{titles}{'over calls':>12}"]
    loops: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        loops.setdefault((row["model"], row["denoiser"]), {})[row["ratio"]] = row
    for (model, name), loop in loops.items():
        call, over = loop[0]["call_ms"], max((row["over_calls"] for row in loop.values()), key=abs)
        times = "".join(f"{loop[ratio]['ms']:>10}" for ratio in RATIOS)
        lines.append(f"{model:<7}{name:<21}{call:>9}{times}{over:>12.2%}")
    for model in dict.fromkeys(model for model, _ in loops):
        own = {name: loop for (other, name), loop in loops.items() if other == model}
        if "eager" in own:
            best = min(own, key=lambda name: own[name][RATIOS[-1]]["ms"])
            full, fast = own["eager"][0]["ms"], own[best][RATIOS[-1]]["ms"]
            lines.append(
                f"{model}: eager full loop {full} ms / {best} at r = {RATIOS[-1]} {fast} ms: {full / fast:.2f}x"
            )
    return lines


def run(model: str, device: str, engines: tuple[str, ...], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures every engine that runs here.

    Args:
        model: One of ``MODELS``.
        device: ``cuda`` or ``cpu``.
        engines: Of ``ENGINES``.
        rounds: Interleaved rounds.
        say: Told what is left out, then the table, a line at a time.
    """
    unet, inputs = make_unet(model, device)
    found, left_out = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in engines:
            try:
                found.append(measure(model, name, unet, inputs, Path(folder), rounds))
            except ZeusError as error:
                left_out[name] = str(error)
                say(f"{name} is left out: {error}")
    rows = [row for figures in found for row in figures["rows"]]
    for line in tabulate(rows):
        say(line)
    own = ("seconds_to_open", "off_eager", "peak_mib")
    each = {figures["rows"][0]["denoiser"]: {name: figures[name] for name in own} for figures in found}
    head = {name: value for name, value in found[0].items() if name not in (*own, "rows")} if found else {}
    return {**head, "left_out": left_out, "engines": each, "rows": rows}


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="sdxl", show_default=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--engines", default="eager,cuda-graph", show_default=True, help=f"Of {','.join(ENGINES)}.")
@click.option("--rounds", default=3, show_default=True)
def main(model: str, device: str, engines: str, rounds: int) -> None:
    click.echo(json.dumps(run(model, device, tuple(engines.split(",")), rounds, click.echo)))


if __name__ == "__main__":
    main()
