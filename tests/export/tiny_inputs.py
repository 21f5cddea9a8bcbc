"""Random inputs of tiny pipelines."""

import torch

TEXT = 16  # width of the text embeddings


def rand(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask(batch: int, length: int, seed: int) -> torch.Tensor:
    """Padding masks (batch, length), int64; rows differ, none is empty."""
    lengths = [max(1, length - (row + seed) % 3) for row in range(batch)]
    return torch.tensor([[1] * n + [0] * (length - n) for n in lengths])


def text(batch: int, prompt: int, seed: int) -> dict[str, torch.Tensor]:
    return {
        "prompt_embeds": rand(seed, batch, prompt, TEXT),
        "negative_prompt_embeds": rand(seed + 9, batch, prompt, TEXT),
    }


def pooled(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {
        "pooled_prompt_embeds": rand(seed + 1, batch, TEXT),
        "negative_pooled_prompt_embeds": rand(seed + 8, batch, TEXT),
    }
