"""Adapters of the small bundle, written by hand."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from small_bundle import GRAPH, LATENTS, list_file, make_graph, write_bundle

from zeus_trt.runtime.bundle.adapter import FACTORS, FILE_NAME, Adapter, place_of

PLACES = {"scale": {"initializer": "scale", "transposed": False}}
FACTOR = {"scale.up": torch.full((1, 1), 2.0), "scale.down": torch.full((1, 16), 0.5)}


def write_adapter(folder: Path, tensors=FACTOR, scaling=None, places=PLACES, precision="fp32") -> Path:
    """A small bundle with the adapter ink, which adds ``scaling`` to the bundle's only weight; returns the bundle."""
    bundle = write_bundle(folder, **({} if precision == "fp32" else {precision: 0.1}))
    adapter = Adapter("ink", 0.5, "1" * 64, {"scale": 0.5} if scaling is None else scaling)
    contents = {
        f"graphs/{precision}/parameters.json": json.dumps({"format": 1, "parameters": places}),
        f"{place_of('ink')}/{FILE_NAME}": adapter.to_json(),
    }
    (bundle / place_of("ink")).mkdir(parents=True)
    for name, text in contents.items():
        (bundle / name).write_text(text)
    save_file(tensors, bundle / place_of("ink") / FACTORS)
    for name in (*contents, f"{place_of('ink')}/{FACTORS}"):
        list_file(bundle, name)
    return bundle


def write_two(folder: Path) -> Path:
    """The bundle, whose weight is 0.1: ink adds 0.5 at its scale 0.5, and style adds -2 at its scale 1.

    Its output is ``sample * (1 + weight)``: the timestep, which would make all pictures white, is not in it.
    """
    bundle, place = write_adapter(folder), place_of("style")
    model = make_graph()
    model.graph.node[2].input[1] = "sample"
    (bundle / GRAPH).write_bytes(model.SerializeToString())
    list_file(bundle, GRAPH)
    (bundle / place).mkdir()
    (bundle / place / FILE_NAME).write_text(Adapter("style", 1.0, "2" * 64, {"scale": 1.0}).to_json())
    save_file({"scale.delta": make_delta(-2.0)}, bundle / place / FACTORS)
    for name in (FILE_NAME, FACTORS):
        list_file(bundle, f"{place}/{name}")
    return bundle


def make_delta(value: float) -> torch.Tensor:
    """A change of the bundle's weight."""
    return torch.full(LATENTS, value)
