"""What is computed before and after an engine that others compiled, on its device."""

from functools import lru_cache

import torch

from zeus_trt.runtime.bundle.border import DISCRETE, EDM, FLOW, Border


def enter(border: Border, latents: torch.Tensor, timestep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a denoiser reads for a solver's latents (batch, ...) and timesteps (batch,): its latents and its time."""
    time = timestep
    if border.reads != "timestep":
        sigma = find_sigma(border, timestep)
        time = sigma if border.reads == "sigma" else sigma.log()
    if border.schedule == EDM and border.returns == "sample":
        latents = latents * _widen(_spread(border, timestep), latents)
    return latents, time


def leave(border: Border, output: torch.Tensor, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """What a solver reads for a denoiser's output (batch, ...); latents and timesteps are the solver's."""
    if border.returns != "sample" or border.schedule == DISCRETE:
        return output
    sigma = find_sigma(border, timestep)
    if border.schedule == FLOW:
        return (latents - output) / _widen(sigma, latents)
    spread, data = _spread(border, timestep), border.sigma_data
    kept, scale = data**2 / spread, spread / (sigma * data)  # c_skip / c_in and 1 / c_out
    return (output - latents * _widen(kept, latents)) * _widen(scale, latents)


def find_sigma(border: Border, timestep: torch.Tensor) -> torch.Tensor:
    """Sigma at the solver's timesteps (batch,), float64."""
    time = timestep.double()
    if border.schedule == EDM:
        return (4 * time).exp()
    if border.schedule == FLOW:
        return time / border.num_train
    logs = _list_logs(border.sigmas, time.device)
    time = time.clamp(0, len(logs) - 1)
    low = time.floor().clamp(max=len(logs) - 2).long()
    return torch.lerp(logs[low], logs[low + 1], time - low).exp()


@lru_cache(maxsize=4)
def _list_logs(sigmas: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """The logarithms of a table of sigmas, once on a device instead of at every call."""
    return torch.tensor(sigmas, dtype=torch.float64, device=device).log()


def _spread(border: Border, timestep: torch.Tensor) -> torch.Tensor:
    """``1 / c_in``: the standard deviation of noisy data, float64."""
    return (find_sigma(border, timestep) ** 2 + border.sigma_data**2).sqrt()


def _widen(rows: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """A number per row, with as many axes as the latents."""
    return rows.to(latents.dtype).reshape(-1, *[1] * (latents.ndim - 1))
