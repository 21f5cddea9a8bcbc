"""Between the solver's latents and those of the denoiser."""

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.manifest import Manifest


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


def adapt(denoiser: Denoiser, manifest: Manifest) -> Denoiser:
    """The denoiser as the solver wants it: told its time, given the channels that stay, without learned variances.

    Args:
        denoiser: The engine.
        manifest: That of its bundle.

    Raises:
        ZeusError: The denoiser is told a time that is no multiple of the timestep, takes other tokens than the
            solver's latents, or its output is neither shaped like them nor twice as many channels.
    """
    state = manifest.state_axes or manifest.latents.axes
    scale = manifest.timestep_scale
    if scale is None:
        raise ZeusError(
            f"timestep: got a {manifest.pipeline_class}, whose denoiser is told no multiple of the timestep; expected "
            "a fixed factor. Wrap the engine in a denoiser that computes it, and use run_steps()."
        )
    latents, constant = manifest.latents.name, name_constant(manifest)
    axis = _find_axis(manifest, manifest.latents.axes, "latents")[0] if constant else 0
    half = None if manifest.output.axes == state else _find_axis(manifest, manifest.output.axes, "model_output")
    if half and manifest.output.axes[half[0]] != 2 * half[1]:
        raise _refuse(manifest, manifest.output.axes, "model_output")
    if scale == 1.0 and not constant and not half:
        return denoiser

    def adapted(**inputs: torch.Tensor) -> torch.Tensor:
        inputs["timestep"] = inputs["timestep"] * scale if scale != 1.0 else inputs["timestep"]
        if constant:
            stays = inputs.pop(constant)
            inputs[latents] = torch.cat([inputs[latents], stays.to(inputs[latents].dtype)], axis)
        output = denoiser(**inputs)
        return output.narrow(half[0], 0, half[1]) if half else output

    return adapted


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
