"""How many rows a call of an engine may have."""

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
