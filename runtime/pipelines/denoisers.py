"""Which modules of a pipeline are denoisers."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.pipelines.arguments import is_modular
from zeus_trt.runtime.pipelines.side_effects import unwrap
from zeus_trt.runtime.pipelines.stand_in import is_scheduler

_NAMES = ("unet", "transformer", "transformer_2", "unconditional_transformer", "prior", "decoder", "controlnet")
_TIMES = {"t", "r", "sigma", "sigmas", "timesteps", "timestep", "timestep_ratio"}
_OTHERS = ("decode", "get_input_embeddings")  # methods of image decoders and of text encoders


def find_denoisers(pipeline: Any) -> dict[str, torch.nn.Module]:
    """The modules of a pipeline that are denoisers before any run shows it, by name.

    These have a usual name, or a ``forward`` that takes a time.
    """
    parts = {name: part for name, part in list_parts(pipeline).items() if isinstance(part, torch.nn.Module)}
    names = [name for name in _NAMES if name in parts and may_denoise(name, parts[name])]
    names += [name for name, part in parts.items() if name not in names and _takes_time(part)]
    return {name: parts[name] for name in names}


def may_denoise(name: str, module: torch.nn.Module) -> bool:
    """Whether a run may show that a module is a denoiser: it is no text encoder and decodes no images."""
    return name in _NAMES[:4] or _takes_time(module) or not any(hasattr(module, method) for method in _OTHERS)


def list_parts(pipeline: Any) -> Mapping[str, Any]:
    """The components of a pipeline by name, and its other attributes that are modules or schedulers."""
    attributes = getattr(pipeline, "__dict__", {}).items()
    others = {name: part for name, part in attributes if isinstance(part, torch.nn.Module) or is_scheduler(part)}
    return {**(_read_components(pipeline) or {}), **others}


def check_single(pipeline: Any, verb: str) -> None:
    """Refuses a pipeline that is made of whole pipelines.

    Args:
        pipeline: The pipeline.
        verb: What to do with each of these instead, such as ``Export``.

    Raises:
        ZeusError: It is.
    """
    if inner := list_pipelines(pipeline):
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__}, made of the pipelines {', '.join(inner)}; expected one with a "
            f"loop of steps. {verb} these one by one."
        )


def check_loaded(pipeline: Any) -> None:
    """Refuses a pipeline without a scheduler or without a module.

    Raises:
        ZeusError: It lacks one, as a modular pipeline does before it loads its components.
    """
    parts = {name: part for name, part in list_parts(pipeline).items() if part is not None}
    has_module = any(isinstance(part, torch.nn.Module) for part in parts.values())
    if has_module and has_scheduler(pipeline):
        return
    loads = "Call its load_components() first."
    advice = loads if is_modular(pipeline) else "Load one with DiffusionPipeline.from_pretrained()."
    raise ZeusError(
        f"pipeline: got a {type(pipeline).__name__} with {', '.join(parts) or 'no components'}; expected a diffusers "
        f"pipeline with a scheduler and a denoiser. {advice}"
    )


def list_pipelines(pipeline: Any) -> dict[str, Any]:
    """The whole pipelines that a pipeline is made of, by name."""
    return {
        name: part
        for name, part in {**getattr(pipeline, "__dict__", {}), **list_parts(pipeline)}.items()
        if callable(part) and _read_components(part) is not None
    }


def has_scheduler(pipeline: Any) -> bool:
    """Whether a pipeline has a part that sets timesteps and takes steps."""
    return any(map(is_scheduler, list_parts(pipeline).values()))


def check_plain(pipeline: Any) -> None:
    """Refuses a modular pipeline, and one that is made of whole pipelines, where several runs go on at a time.

    Raises:
        ZeusError: It is.
    """
    if is_modular(pipeline):
        kind = type(pipeline).__name__
        raise ZeusError(
            f"pipeline: got a {kind}, which is modular: runs of it share the state of its guider; expected one that is "
            f"not. Make one of its components, such as {kind.replace('Modular', '')}(**components)."
        )
    check_single(pipeline, "Use")


def _read_components(pipeline: Any) -> dict[str, Any] | None:
    try:
        parts = getattr(pipeline, "components", None)
    except ValueError:  # diffusers, of a pipeline whose arguments are not its components
        parts = {}
    return parts if isinstance(parts, dict) else None


def _takes_time(module: torch.nn.Module) -> bool:
    module = unwrap(module)
    if hasattr(module, _OTHERS[0]):
        return False
    return not _TIMES.isdisjoint(inspect.signature(type(module).forward).parameters)
