"""Named tensors as an engine takes them."""

from collections.abc import Mapping
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_profile import Profile


def cast_inputs(
    backend: str, inputs: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype], device: torch.device
) -> dict[str, torch.Tensor]:
    """The inputs in the order and types of ``dtypes``, contiguous, on ``device``.

    Args:
        backend: Who asks, for the message.
        inputs: By name, batch first; a timestep of shape (), (1,) or (1, tokens) serves every row. Numbers,
            lists of them and NumPy arrays become tensors.
        dtypes: What the engine declares, the latents first: theirs is the number of rows.
        device: Where it runs.

    Raises:
        ZeusError: An input is missing or unknown, is neither a tensor nor numbers, or the latents have no rows.
    """
    if inputs.keys() != dtypes.keys():
        raise ZeusError(
            f"{backend}: got the inputs {sorted(inputs)}; expected {sorted(dtypes)}. Pass each of them by name."
        )
    tensors = {name: _to_tensor(backend, name, inputs[name]) for name in dtypes}
    latents = next(iter(dtypes))
    if tensors[latents].ndim == 0:
        raise ZeusError(
            f"{backend}: got {latents} of shape (); expected latents, a row per image. Pass a tensor with a batch axis."
        )
    batch = len(tensors[latents])
    cast = {}
    for name, dtype in dtypes.items():
        value = tensors[name].detach().to(device, dtype)
        cast[name] = (spread_rows(value, batch) if name == "timestep" else value).contiguous()
    return cast


def spread_rows(timestep: torch.Tensor, batch: int) -> torch.Tensor:
    """A timestep per row of the latents: one of shape (), (1,) or (1, tokens) serves them all."""
    rows = torch.atleast_1d(timestep)
    return rows.expand(batch, *rows.shape[1:]) if len(rows) == 1 else rows


def _to_tensor(backend: str, name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ZeusError(
            f"{backend}: got a {type(value).__name__} for {name}; expected a tensor, or numbers. Pass one."
        ) from error


def measure(inputs: Mapping[str, torch.Tensor], profile: Profile) -> dict[str, tuple[int, ...]]:
    """The shape of each input, or the value of an integer that the profile has a range of values for."""
    return {
        name: (int(value),) if value.ndim == 0 and name in profile and profile[name].min else tuple(value.shape)
        for name, value in inputs.items()
    }
