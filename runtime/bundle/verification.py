"""How far an engine is from what it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeus_trt.runtime.bundle.manifest_check import check_sizes


@dataclass(frozen=True)
class Verification:
    """One comparison with the eager model in float32; of a quantized graph, with the graph that it was made from.

    Args:
        backend: What ran the exported graph. ``eager-bf16`` and ``eager-fp16`` are no graph: the module that it was
            traced from, in that precision.
        shape: Shape of the latents.
        dtype: Name of the output's dtype.
        max_error: Largest absolute difference of an element.
        relative_error: ``|output - eager| / |eager|``, Euclidean norms.
        setting: What the pipeline was run with, where it differs from the base run of the export. Of a quantized graph
            the precision of the other graph, as ``reference``, and the worst ``step``, whose error this is.
    """

    backend: str
    shape: tuple[int, ...]
    dtype: str
    max_error: float
    relative_error: float
    setting: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sizes("verification", *self.shape)
        if not (self.max_error >= 0 and self.relative_error >= 0):
            raise ValueError("verification has an error that is no number from 0 on")
