"""What is computed between a solver and a denoiser that others compiled: data, which the runtime applies."""

import math
from dataclasses import dataclass

READS = ("sigma", "timestep", "log-sigma")
"""What a denoiser may read as its time."""

KINDS = ("epsilon", "v", "flow", "sample", "edm")
"""What it may return."""

EDM, FLOW, DISCRETE = "edm", "flow", "discrete"


@dataclass(frozen=True)
class Border:
    """The border between a solver and a denoiser.

    A solver of EDM passes ``c_in x`` and ``c_noise = ln(sigma) / 4``, and reads the bare network's output F (Karras et
    al., "Elucidating the Design Space of Diffusion-Based Generative Models", eq. 7 and table 1). One of flow matching
    passes ``x = (1 - sigma) x0 + sigma noise`` and ``num_train * sigma``, and reads ``noise - x0``. The others pass a
    timestep whose sigma is in a table, and read what the denoiser returns.

    Args:
        schedule: ``edm``, ``flow`` or ``discrete``.
        returns: One of ``KINDS``.
        reads: One of ``READS``.
        sigma_data: Standard deviation of the data, of EDM.
        num_train: What flow matching multiplies sigma with.
        sigmas: Sigma at each integer timestep, of a discrete schedule.
    """

    schedule: str
    returns: str
    reads: str = "timestep"
    sigma_data: float = 0.5
    num_train: int = 1000
    sigmas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("schedule", (EDM, FLOW, DISCRETE)), ("returns", KINDS), ("reads", READS)):
            if getattr(self, name) not in known:
                raise ValueError(f"a border has the {name} {getattr(self, name)!r}, not one of {', '.join(known)}")
        if not all(math.isfinite(number) and number > 0 for number in (self.sigma_data, self.num_train, *self.sigmas)):
            raise ValueError("a border has a sigma_data, num_train or sigma that is not positive")
        if self.schedule == DISCRETE and self.reads != "timestep" and len(self.sigmas) < 2:
            raise ValueError("a border reads sigma of a discrete schedule, and has no table of it")
