"""An engine that others compiled, of a bundle that has no graph."""

import re
from dataclasses import dataclass

from zeus_trt.runtime.bundle.border import Border
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.bundle.verification import Verification

BACKENDS = ("tensorrt", "tensorrt-rtx", "aot-inductor")

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Foreign:
    """An engine that others compiled, and what is computed around each of its calls.

    Args:
        backend: One of ``BACKENDS``.
        precision: Of most of its weights, as far as it says.
        sha256: Digest of its file, which is in ``engines/`` with a record, as every engine is.
        inputs: Its own, in its order, with its names and types; axes have the bundle's names. By their roles one is the
            latents, one the time, of as many axes as the engine has there; the others are conditioning of these names.
        output: The one of its outputs that is read.
        border: What is computed before and after it.
        place: Which of its outputs that is.
        by_rows: Whether it is called for one row at a time.
        verification: How far what the bundle computes around it is from the formulas in float64.
    """

    backend: str
    precision: Precision
    sha256: str
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    border: Border
    place: int = 0
    by_rows: bool = False
    verification: tuple[Verification, ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS or not _SHA256.fullmatch(self.sha256) or self.place < 0:
            raise ValueError(f"a foreign engine has the backend {self.backend!r}, a wrong digest or a wrong place")
        roles = [spec.role for spec in self.inputs]
        if roles.count("latents") != 1 or roles.count("timestep") != 1:
            raise ValueError("a foreign engine has not one input of latents and one of the time")

    @property
    def symbols(self) -> tuple[SymbolSpec, ...]:
        """What its axes are in pixels, which it does not say."""
        return ()
