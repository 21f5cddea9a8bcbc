"""Between the solver's latents and those of the denoiser."""

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest


def name_constant(manifest: Manifest) -> str | None:
    """Name of the conditioning that holds the channels of the latents which stay, as in inpainting: mask and picture.

    None if the solver steps all of them. They follow the stepped channels, (batch, channels, ...).
    """
    state = manifest.state_axes or manifest.latents.axes
    return None if state == manifest.latents.axes else f"{manifest.latents.name}_constant"


def constant_axes(manifest: Manifest) -> tuple[int | str, ...]:
    """Axes of the channels that stay."""
    axis, size = _find_axis(manifest, manifest.latents.axes, "latents")
    axes = manifest.latents.axes
    return (*axes[:axis], int(axes[axis]) - size, *axes[axis + 1 :])


class LatentsBorder:
    """Between the solver's latents and the engine's: timestep scale, constant channels, learned variance.

    Args:
        manifest: That of the engine's bundle.

    Raises:
        ZeusError: The engine reads a time that is not a multiple of the timestep, takes other tokens than the solver's
            latents, or returns neither their shape nor twice as many channels.
    """

    def __init__(self, manifest: Manifest):
        state = manifest.state_axes or manifest.latents.axes
        if manifest.timestep_scale is None:
            raise ZeusError(
                f"timestep: got a {manifest.pipeline_class}, whose denoiser reads no multiple of the timestep; "
                "expected a fixed factor. Wrap the engine in a denoiser that computes it, and use run_steps()."
            )
        self._scale: float = manifest.timestep_scale
        self._latents, self._constant = manifest.latents.name, name_constant(manifest)
        self._axis = _find_axis(manifest, manifest.latents.axes, "latents")[0] if self._constant else 0
        self._half = (
            None if manifest.output.axes == state else _find_axis(manifest, manifest.output.axes, "model_output")
        )
        if self._half and manifest.output.axes[self._half[0]] != 2 * self._half[1]:
            raise _refuse(manifest, manifest.output.axes, "model_output")

    def enter(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs of the engine."""
        entered = dict(inputs)
        if self._scale != 1.0:
            entered["timestep"] = entered["timestep"] * self._scale
        if self._constant:
            latents, stays = entered[self._latents], entered.pop(self._constant)
            entered[self._latents] = torch.cat([latents, stays.to(latents.dtype)], self._axis)
        return entered

    def leave(self, output: torch.Tensor) -> torch.Tensor:
        """The part of the engine's output that the solver reads."""
        return output.narrow(self._half[0], 0, self._half[1]) if self._half else output


def _find_axis(manifest: Manifest, axes: tuple[int | str, ...], thing: str) -> tuple[int, int]:
    """The one axis where ``axes`` are more than the solver's, and the solver's size of it."""
    state = manifest.state_axes or manifest.latents.axes
    differing = [i for i, (size, own) in enumerate(zip(axes, state, strict=False)) if size != own]
    own = state[differing[0]] if len(differing) == 1 else None
    size = axes[differing[0]] if differing else None
    if len(axes) != len(state) or not isinstance(own, int) or not isinstance(size, int) or size <= own:
        raise _refuse(manifest, axes, thing)
    return differing[0], own


def _refuse(manifest: Manifest, axes: tuple[int | str, ...], thing: str) -> ZeusError:
    state = manifest.state_axes or manifest.latents.axes
    return ZeusError(
        f"{thing}: got axes {axes}, and solver latents of {state}; expected the same, or more channels. "
        "Wrap the engine in a denoiser that takes and gives the solver's latents, and use run_steps()."
    )
