"""A denoiser of real size through the program loop on a CUDA device: does the speed-up reach its bound?

    python benchmarks/large_denoiser.py [--model sdxl|sd21]

The weights are random, in fp16, at the model's real sizes: the figures are of speed alone and say nothing about
pictures (`zeus-trt compare` measures quality, on a trained model). The denoiser is the torch module, called eagerly
and replayed from a CUDA graph. Guidance doubles the batch. Medians over interleaved rounds, CUDA events; the last line
is one JSON object.
"""

import json
from statistics import median

import click
import diffusers
import torch

from zeus_trt.machine import describe_machine
from zeus_trt.runtime import ClassifierFreeGuidance, ProgramLoop, draw_noise
from zeus_trt.zeus_graph import StepPlan, fold, trace

NUM_STEPS, RATIOS = 50, (0, 2, 3, 4)
CROSS, PLAIN, UP_CROSS, UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"
MODELS = {
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


def make_denoiser(model: str):
    """The UNet as a denoiser of flat tensors, and its conditioning for one image."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        unet = diffusers.UNet2DConditionModel(**MODELS[model]["config"]).half().eval()
        conditioning = {"encoder_hidden_states": torch.randn(1, *MODELS[model]["context"]).half()}
        if model == "sdxl":
            conditioning |= {"text_embeds": torch.randn(1, 1280).half(), "time_ids": torch.full((1, 6), 1024.0).half()}

    def denoise(sample, timestep, encoder_hidden_states, **added):
        extra = {"added_cond_kwargs": added} if added else {}
        return unet(sample.half(), timestep, encoder_hidden_states, return_dict=False, **extra)[0]

    return denoise, conditioning, sum(parameter.numel() for parameter in unet.parameters())


class Graphed:
    """A denoiser replayed from a CUDA graph; its output buffer is overwritten by the next call."""

    def __init__(self, denoiser):
        self._denoiser = denoiser
        self._graph = None

    def __call__(self, **inputs):
        if self._graph is None:
            self._inputs = {name: value.clone() for name, value in inputs.items()}
            self._denoiser(**self._inputs)  # warm-up: cuDNN chooses its algorithms
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = self._denoiser(**self._inputs)
        for name, value in inputs.items():
            self._inputs[name].copy_(value)
        self._graph.replay()
        return self._output


def time_run(loop, denoiser, noise, conditioning) -> float:
    """Milliseconds of a trajectory on the device."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    loop.run(denoiser, noise, conditioning)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="sdxl", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@torch.inference_mode()
def main(model: str, rounds: int) -> None:
    denoiser, conditioning, parameters = make_denoiser(model)
    negative = {name: torch.zeros_like(value) for name, value in conditioning.items()}
    noise = draw_noise((1, *MODELS[model]["latents"]), seed=0).cuda()
    solver = trace(diffusers.DPMSolverMultistepScheduler(), NUM_STEPS)
    plans = {ratio: StepPlan.uniform(NUM_STEPS, ratio) for ratio in RATIOS}
    loops = {ratio: ProgramLoop(fold(solver, plan), noise) for ratio, plan in plans.items()}
    rows = []
    for kind, inner in (("eager", denoiser), ("cuda graph", Graphed(denoiser))):
        guided = ClassifierFreeGuidance(inner, 5.0, negative)
        time_run(loops[4], guided, noise, conditioning)
        times: dict[int, list[float]] = {ratio: [] for ratio in RATIOS}
        for _ in range(rounds):
            for ratio in RATIOS:
                times[ratio].append(time_run(loops[ratio], guided, noise, conditioning))
        for ratio, plan in plans.items():
            speedups = [full / skipped for full, skipped in zip(times[0], times[ratio], strict=True)]
            rows.append(
                {
                    "denoiser": kind, "ratio": ratio, "nfe": plan.nfe, "ms": round(median(times[ratio]), 1),
                    "ms_min": round(min(times[ratio]), 1), "ms_max": round(max(times[ratio]), 1),
                    "speedup": round(median(speedups), 3), "bound": round(plan.speedup_bound, 3),
                }
            )  # fmt: skip
            click.echo(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    settings = {"model": model, "parameters": parameters, "latents": MODELS[model]["latents"], "rounds": rounds}
    peak = torch.cuda.max_memory_allocated() // 2**20
    head = {"benchmark": "large_denoiser", **settings, "peak_mib": peak, "machine": describe_machine()}
    click.echo(json.dumps({**head, "rows": rows}))


if __name__ == "__main__":
    main()
