"""Bundles without files: a manifest, a toy denoiser and a scheduler make a session in no time."""

from dataclasses import replace
from pathlib import Path

import diffusers
import torch

from zeus_trt.runtime import Bundle, Manifest, Session
from zeus_trt.runtime.bundle.manifest import Graph, Labels
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec

SAMPLE = TensorSpec("sample", "float32", ("batch", 4, "height", "width"), "latents")
TIMESTEP = TensorSpec("timestep", "float32", ("batch",), "timestep")
TEXT = TensorSpec("encoder_hidden_states", "float32", ("batch", "length", 6))
GUIDANCE = TensorSpec("guidance", "float32", ("batch",))
LABELS = TensorSpec("class_labels", "int64", ("batch",))


def make_manifest(*conditioning, latents=SAMPLE, output_axes=None, **changes):
    """A manifest of these inputs."""
    output = TensorSpec("model_output", "float32", output_axes or latents.axes, "output")
    symbols = (SymbolSpec("batch", (2,)), SymbolSpec("height", (8,), multiple_of=2), SymbolSpec("width", (8,), 2))
    return Manifest(
        "toy", "unet", "Toy", {}, "", "epsilon", (latents, TIMESTEP, *conditioning), output, symbols, None,
        (Graph(Precision.FP32),), {}, **changes,
    )  # fmt: skip


def make_session(*conditioning, engine=None, scheduler=None, labels=None, **changes):
    """A session of a toy; Euler steps unless told otherwise."""
    manifest = replace(make_manifest(*conditioning, **changes), labels=labels)
    scheduler = scheduler or diffusers.EulerDiscreteScheduler()
    return Session(Bundle(Path("nowhere"), manifest), engine=engine or denoise, scheduler=scheduler)


def denoise(sample, timestep, encoder_hidden_states=None, class_labels=None, guidance=None):
    """A smooth function of all that it is told, row by row."""
    rows = (timestep / 1000).sin()
    if encoder_hidden_states is not None:
        rows = rows + encoder_hidden_states.mean((1, 2))
    if class_labels is not None:
        rows = rows + (class_labels * 1.3).sin()
    if guidance is not None:
        rows = rows + guidance / 10
    return torch.tanh(sample.roll(1, 1) * 0.8 + rows.to(sample.dtype)[:, None, None, None])


def embed(seed, batch=2, length=3):
    """Embeddings of as many prompts."""
    return torch.randn(batch, length, 6, generator=torch.Generator().manual_seed(seed))


DIGITS = Labels(10, 10)
