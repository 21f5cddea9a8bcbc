"""The border of a graph: the solver's latents and timestep outside, what the denoiser is called with inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

CONSTANT = "constant"


@dataclass(frozen=True)
class Border:
    """What a graph does around its denoiser.

    Args:
        latents: Name of the latents.
        timestep: Name of the timestep.
        timestep_scale: What the solver's timestep is multiplied with.
        constant_axis: Axis along which the denoiser's latents have channels that stay after those of the solver; None
            where the solver steps all of them.
        size: The solver's size of that axis.
        variance_axis: Axis along which the denoiser returns a learned variance after its prediction; None without one.
        dtypes: The floating-point type that the denoiser takes of an input, by name; float32 where it is not named.
        unsteppable: Why this border is the denoiser's own instead, which no solver can step; empty if it is not.
    """

    latents: str
    timestep: str
    timestep_scale: float = 1.0
    constant_axis: int | None = None
    size: int = 0
    variance_axis: int | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    unsteppable: str = ""

    @property
    def constant(self) -> str:
        """Name of the input for the channels that stay."""
        return f"{self.latents}_constant"

    def enter(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the denoiser's arguments for inputs of the graph, by name; integers stay as they are."""
        entered = dict(inputs)
        if self.timestep_scale != 1.0:
            entered[self.timestep] = entered[self.timestep] * self.timestep_scale
        if self.constant_axis is not None:
            both = [entered[self.latents], entered.pop(self.constant)]
            entered[self.latents] = torch.cat(both, self.constant_axis)
        return {name: self._cast(name, value) for name, value in entered.items()}

    def leave(self, output: torch.Tensor) -> torch.Tensor:
        """The denoiser's output as the solver takes it: the prediction, float32."""
        if self.variance_axis is not None:
            output = output.narrow(self.variance_axis, 0, output.shape[self.variance_axis] // 2)
        return output.float()

    def split(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs of the graph for a call of the denoiser, by name: what ``enter`` makes that call of."""
        found = {name: _to_float32(value) for name, value in arguments.items()}
        if self.timestep_scale != 1.0:
            found[self.timestep] = found[self.timestep] / self.timestep_scale
        if self.constant_axis is None:
            return found
        rest = found[self.latents].shape[self.constant_axis] - self.size
        latents, stays = found.pop(self.latents).split([self.size, rest], self.constant_axis)
        timestep = found.pop(self.timestep)
        return {self.latents: latents, self.timestep: timestep, self.constant: stays, **found}

    def _cast(self, name: str, value: Any) -> Any:
        dtype = self.dtypes.get(name, torch.float32)
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@dataclass(frozen=True)
class Axes:
    """Sizes or symbols' names per axis: of the denoiser's latents, of the part that the solver steps, of the output."""

    latents: tuple[int | str, ...]
    state: tuple[int | str, ...]
    output: tuple[int | str, ...]


def find_border(
    names: Sequence[str],
    axes: Axes,
    timestep_scale: float | None,
    learns_variance: bool = False,
    unsteppable: str = "",
) -> Border:
    """The border of a captured denoiser.

    Args:
        names: Of its latents and its timestep.
        axes: Of its latents and its output.
        timestep_scale: What its timesteps are multiples of the solver's by; None if they are not.
        learns_variance: Whether the solver reads a variance that the denoiser returns after its prediction.
        unsteppable: Why no solver can step it, where that is known.
    """
    latents, timestep = names
    if unsteppable:
        return Border(latents, timestep, unsteppable=unsteppable)
    constant, variance = _find_wider(axes.latents, axes.state), _find_wider(axes.output, axes.state)
    reason = ""
    if timestep_scale is None:
        reason = "it reads a time that is no multiple of the solver's timestep"
    elif axes.latents != axes.state and constant is None:
        reason = f"the solver steps {axes.state} of its latents {axes.latents}"
    elif axes.output != axes.state and (variance is None or axes.output[variance] != 2 * int(axes.state[variance])):
        reason = f"it returns {axes.output} for latents of {axes.state}"
    elif variance is not None and learns_variance:
        reason = "its scheduler reads the variance that it returns"
    if timestep_scale is None or reason:
        return Border(latents, timestep, unsteppable=reason)
    size = 0 if constant is None else int(axes.state[constant])
    return Border(latents, timestep, timestep_scale, constant, size, variance)


def _find_wider(axes: Sequence[int | str], state: Sequence[int | str]) -> int | None:
    """The one axis where ``axes`` are wider than the solver's; None if they are not, or differ in another way."""
    places = [place for place, (size, own) in enumerate(zip(axes, state, strict=False)) if size != own]
    if len(axes) != len(state) or len(places) != 1:
        return None
    size, own = axes[places[0]], state[places[0]]
    return places[0] if isinstance(size, int) and isinstance(own, int) and size > own else None


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
