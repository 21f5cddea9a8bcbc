"""Named tensors as an engine wants them."""

from collections.abc import Mapping

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.engine_profile import Profile


def cast_inputs(
    backend: str, inputs: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype], device: torch.device
) -> dict[str, torch.Tensor]:
    """The inputs in the order and types of ``dtypes``, contiguous, on ``device``.

    Args:
        backend: Who asks, for the message.
        inputs: By name, batch first; a timestep of shape (), (1,) or (1, tokens) serves every row.
        dtypes: What the engine declares, the latents first: theirs is the number of rows.
        device: Where it runs.

    Raises:
        ZeusError: An input is missing or unknown.
    """
    if inputs.keys() != dtypes.keys():
        raise ZeusError(
            f"{backend}: got the inputs {sorted(inputs)}; expected {sorted(dtypes)}. Pass each of them by name."
        )
    batch = len(inputs[next(iter(dtypes))])
    cast = {}
    for name, dtype in dtypes.items():
        value = inputs[name].detach().to(device, dtype)
        cast[name] = (spread_rows(value, batch) if name == "timestep" else value).contiguous()
    return cast


def spread_rows(timestep: torch.Tensor, batch: int) -> torch.Tensor:
    """A timestep per row of the latents: one of shape (), (1,) or (1, tokens) serves them all."""
    rows = torch.atleast_1d(timestep)
    return rows.expand(batch, *rows.shape[1:]) if len(rows) == 1 else rows


def measure(inputs: Mapping[str, torch.Tensor], profile: Profile) -> dict[str, tuple[int, ...]]:
    """The shape of each input, or the value of an integer that the profile has a range of values for."""
    return {
        name: (int(value),) if value.ndim == 0 and name in profile and profile[name].min else tuple(value.shape)
        for name, value in inputs.items()
    }
