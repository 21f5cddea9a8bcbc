"""Random calls of a denoiser of latents, timestep and class labels."""

import torch

from zeus_trt.export.labels import count_labels


def example_inputs(denoiser, batch, seed=0):
    """Latents, then timestep (batch,) with other values per row, then labels."""
    generator = torch.Generator().manual_seed(seed)
    size, channels = denoiser.config["sample_size"], denoiser.config["in_channels"]
    name = "hidden_states" if "Transformer" in type(denoiser).__name__ else "sample"
    inputs = {name: torch.randn(batch, channels, size, size, generator=generator)}
    inputs["timestep"] = torch.rand(batch, generator=generator) * 999
    if count := count_labels(denoiser):
        inputs["class_labels"] = torch.randint(count, (batch,), generator=generator)
    return inputs
