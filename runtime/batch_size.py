"""How many rows a call of an engine may have, and which."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.size_rules import check_sizes
from zeus_trt.runtime.denoiser import Denoiser


def takes_batch(engine: Denoiser, manifest: Manifest, size: int) -> bool:
    """Whether an engine takes so many rows, by the graph's rules and the shapes that it was built for.

    Args:
        engine: The engine.
        manifest: That of its bundle.
        size: Rows.
    """
    axis = manifest.latents.axes[0]
    if isinstance(axis, int) and size != axis:
        return False
    try:
        check_sizes(manifest.symbols, manifest.relations, {str(axis): size})
    except ZeusError:
        return False
    profile = getattr(getattr(engine, "info", None), "profile", None)
    limits = profile[manifest.latents.name] if profile else None
    return limits is None or bool(limits.min[0] <= size <= limits.max[0])


@dataclass(frozen=True)
class RowCalls:
    """Calls of some rows of a batch.

    Args:
        engines: What is called.
        manifest: That of their bundle.
    """

    engines: Sequence[Denoiser]
    manifest: Manifest

    @cached_property
    def by_row(self) -> frozenset[str]:
        """The names of the inputs that have a row per row of the batch."""
        batch = self.manifest.latents.axes[:1]
        return frozenset(spec.name for spec in self.manifest.inputs if spec.axes[:1] == batch)

    def takes(self, size: int) -> bool:
        """Whether each engine takes a call of so many rows, without preparing anything for them."""
        return all(
            not getattr(engine, "prepares_shapes", False) and takes_batch(engine, self.manifest, size)
            for engine in self.engines
        )
