"""Which adapters of a bundle an engine has in its weights, and at which scales."""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.adapter import Adapter, Factors
from zeus_trt.zeus_graph.counts import is_finite, show

Choice = str | Mapping[str, float | None]
"""``ink``; ``ink:0.6``, at another scale; ``ink:0.6,style:0.4``; or a scale by name, None for the stored one."""


@dataclass(frozen=True)
class Mixture:
    """Adapters of a bundle at chosen scales: weights change by the sum of what each adds.

    Args:
        parts: The adapters, as they are stored.
        scales: That of each, as ``set_adapters`` takes it.
    """

    parts: tuple[Adapter, ...]
    scales: Mapping[str, float]

    @property
    def name(self) -> str:
        """As ``read_choice`` reads it."""
        return write_choice(self.scales)

    @property
    def sha256(self) -> str:
        """Digest of the weights and scales of all."""
        return digest_parts(self, lambda part: part.sha256)

    @property
    def scaling(self) -> Mapping[str, float]:
        """The parameters that change; ``mix`` multiplies with the scales."""
        return {name: 1.0 for part in self.parts for name in part.scaling}

    def mix(self, factors: Mapping[str, Factors]) -> "MixedFactors":
        """The sum of the changes, of the factors of each adapter by its name."""
        return MixedFactors(self, factors)


class MixedFactors:
    """Changes of several adapters, in the place of the ``Factors`` of one."""

    def __init__(self, mixture: Mixture, factors: Mapping[str, Factors]):
        self._mixture, self._factors = mixture, factors

    def multiply(self, parameter: str, scaling: float) -> torch.Tensor:
        """As ``Factors.multiply``; the sum is made in the order of the names."""
        changes = [
            self._factors[part.name].multiply(
                parameter, scaling * part.scaling[parameter] * self._mixture.scales[part.name] / part.scale
            )
            for part in self._mixture.parts
            if parameter in part.scaling
        ]
        flat = [change.flatten(1) if change.ndim > 1 else change for change in changes]
        if len({change.shape for change in flat}) > 1:
            shapes = ", ".join(str(tuple(change.shape)) for change in flat)
            raise ZeusError(
                f"adapter: got changes of {parameter} of {shapes}; expected one shape. Use adapters of this model."
            )
        return functools.reduce(torch.add, flat)


def digest_parts(mixture: Mixture, digest: Callable[[Adapter], str]) -> str:
    """SHA-256 over names, scales, and what ``digest`` says of each adapter at its stored scale."""
    lines = [f"{part.name} {mixture.scales[part.name]:.6g} {digest(part)}" for part in mixture.parts]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_choice(choice: Choice) -> dict[str, float | None]:
    """The scale of each adapter by name, in the order of the names; None for the stored one.

    Raises:
        ZeusError: A name twice, no name, or a scale that is no number or 0.
    """
    pairs: list[tuple[Any, Any]]
    if isinstance(choice, str):
        pairs = [(name, _read_scale(choice, text) if colon else None) for name, colon, text in _split(choice)]
    elif isinstance(choice, Mapping):
        pairs = [*choice.items()]
    else:
        raise _refuse(choice)
    read = dict(sorted(pairs, key=lambda pair: str(pair[0])))
    if not read or len(read) < len(pairs):
        raise _refuse(choice)
    for name, scale in read.items():
        if not isinstance(name, str) or not name or not (scale is None or (is_finite(scale) and scale)):
            raise _refuse(choice)
    return {name: None if scale is None else float(scale) for name, scale in read.items()}


def write_choice(scales: Mapping[str, float | None]) -> str:
    """The text of a choice, which is the same for equal choices."""
    return ",".join(name if scale is None else f"{name}:{scale!r}" for name, scale in scales.items())


def mix(choice: Mapping[str, float | None], read: Callable[[str], Adapter]) -> Adapter | Mixture:
    """The adapter that engines get, of a choice as ``read_choice`` makes it; ``read`` gives the stored ones."""
    parts = tuple(map(read, choice))
    scales = {part.name: part.scale if (scale := choice[part.name]) is None else scale for part in parts}
    if len(parts) == 1 and math.isclose(scales[parts[0].name], parts[0].scale):
        return parts[0]
    return Mixture(parts, scales)


def _split(text: str) -> list[tuple[str, str, str]]:
    return [part.strip().partition(":") for part in text.split(",")]


def _read_scale(choice: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise _refuse(choice) from error


def _refuse(choice: Any) -> ZeusError:
    pairs = choice.items() if isinstance(choice, Mapping) else ()
    got = ", ".join(f"{show(name)} at {show(scale)}" for name, scale in pairs) or show(choice)
    return ZeusError(
        f"adapter: got {got}; expected a name, or names with scales that are not 0, such as "
        "ink:0.6,style:0.4. Change it."
    )
