"""Masks that a pipeline passes only where its prompts differ in length."""

from dataclasses import replace

import torch

from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.pipelines.arguments import Arguments


def fill_masks(manifest: Manifest, found: Arguments) -> Arguments:
    """The arguments of a call with ones for each mask of the manifest that the pipeline leaves out."""
    missing = [spec for spec in manifest.inputs if spec.name in manifest.masks and found.leaves.get(spec.name) is None]
    if not missing:
        return found
    tensors = found.tensors
    given = [(spec.axes, tensors[spec.name].shape) for spec in manifest.inputs if spec.name in tensors]
    sizes = {axis: size for axes, shape in given for axis, size in zip(axes, shape, strict=False)}
    device = tensors[manifest.latents.name].device
    masks = {
        spec.name: torch.ones([sizes[axis] for axis in spec.axes], dtype=getattr(torch, spec.dtype), device=device)
        for spec in missing
    }
    return replace(found, leaves={**found.leaves, **masks})
