"""Adapters beside the graphs of a bundle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.folder import replace_files
from zeus_trt.export.lora_file import load_adapter
from zeus_trt.runtime.bundle.adapter import FACTORS, FILE_NAME, Adapter, Factors, check_name, place_of
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.pipelines.weights_digest import digest_adapters
from zeus_trt.zeus_graph.counts import is_finite, show


def add_adapter(
    bundle: str | Path | Bundle, file: str | Path, name: str, *, scale: float = 1.0, overwrite: bool = False
) -> Bundle:
    """Stores a LoRA file in a bundle, for ``Session(bundle, adapter=name)``; nothing is exported.

    What the file adds to each weight is stored as its low-rank factors, in the precision of the file. Weights of text
    encoders are left to the pipeline.

    Args:
        bundle: A bundle of a float graph, which is replaced at once by one that has the adapter too.
        file: A ``.safetensors`` file in any format that diffusers loads for this pipeline.
        name: The adapter's name, as in the pipeline: ``load_lora_weights(file, adapter_name=name)``.
        scale: As ``set_adapters`` takes it; another scale is another adapter.
        overwrite: Replace an adapter of this name.

    Returns:
        The bundle, with the adapter chosen.

    Raises:
        ZeusError: No LoRA of this denoiser, weights that the graph does not hold as they are, or a quantized graph.
    """
    bundle = Bundle.open(bundle.path if isinstance(bundle, Bundle) else bundle)  # others may have added adapters
    manifest, place = bundle.manifest, place_of(check_name(name))
    graph = manifest.find_graph()
    if not is_finite(scale) or not scale:
        raise ZeusError(f"scale: got {show(scale)}; expected a number that is not 0. Change it.")
    if name in bundle.adapters and not overwrite:
        raise ZeusError(f"adapter: got {name}, which the bundle has; expected a new name. Choose one, or overwrite.")
    if manifest.adapters:
        raise ZeusError(
            f"adapter: got a bundle that was exported with {', '.join(manifest.adapters)}; expected one without "
            "adapters. Export the pipeline without them, or with all of them active."
        )
    denoiser = load_adapter(manifest, Path(file), name, float(scale))
    tensors, scaling = _read_factors(denoiser, name)
    adapter = Adapter(name, float(scale), digest_adapters(denoiser, graph), scaling)
    fuse(replace(bundle, adapter=adapter), factors=Factors(tensors, tensors.__getitem__))  # refuses what none can load
    with replace_files(bundle, Path(place)) as folder:
        from safetensors.torch import save_file

        (folder / FILE_NAME).write_text(adapter.to_json(), encoding="utf-8")
        save_file(tensors, folder / FACTORS)
    return Bundle.open(bundle.path).with_adapter(name)


def _read_factors(denoiser: Any, name: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Tensors and factors, as ``Adapter`` has them."""
    tensors: dict[str, torch.Tensor] = {}
    scaling: dict[str, float] = {}
    for path, layer in denoiser.named_modules():
        if not hasattr(layer, "base_layer") or name not in getattr(layer, "scaling", ()):
            continue
        weight = f"{path}.weight"
        up = getattr(layer, "lora_B", {})
        is_odd = getattr(layer, "fan_in_fan_out", False) or getattr(layer.base_layer, "groups", 1) > 1
        is_plain = name in up and not is_odd
        scaling[weight] = float(layer.scaling[name]) if is_plain else 1.0
        with torch.no_grad():
            if is_plain:
                tensors[f"{weight}.up"] = up[name].weight.flatten(1).contiguous()
                tensors[f"{weight}.down"] = layer.lora_A[name].weight.flatten(1).contiguous()
            else:
                tensors[f"{weight}.delta"] = layer.get_delta_weight(name).contiguous()
        if (bias := getattr(up[name], "bias", None) if name in up else None) is not None:
            scaling[f"{path}.bias"] = float(layer.scaling[name])
            tensors[f"{path}.bias.delta"] = bias.detach().contiguous()
    return tensors, scaling
