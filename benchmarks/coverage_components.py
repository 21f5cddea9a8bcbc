"""Tiny random pipelines of any class, from the component classes that its constructor names."""

# ruff: noqa: C408  (a config reads better as keywords)

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import coverage_doubles as doubles
import coverage_texts as texts
import diffusers
import torch
from coverage_models import MODELS, SIZES

SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "decoder_scheduler: UnCLIPScheduler": dict(variance_type="learned_range"),
    "prior_scheduler: UnCLIPScheduler": dict(prediction_type="sample"),
    "AmusedScheduler": dict(mask_token_id=31), "VQDiffusionScheduler": dict(num_vec_classes=17),
    "UniPCMultistepScheduler": dict(prediction_type="flow_prediction", use_flow_sigmas=True),
}  # fmt: skip
"""Configs of schedulers, by class, or by the name of the component and class."""


_SDE = dict(algorithm_type="sde-dpmsolver++", solver_order=2)
OWN_SCHEDULERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Cosmos2TextToImagePipeline": ("FlowMatchEulerDiscreteScheduler", dict(use_karras_sigmas=True)),
    "Cosmos2VideoToWorldPipeline": ("FlowMatchEulerDiscreteScheduler", dict(use_karras_sigmas=True)),
    "CycleDiffusionPipeline": ("DDIMScheduler", dict(set_alpha_to_one=False, clip_sample=False)),
    "DanceDiffusionPipeline": ("IPNDMScheduler", {}),
    "HeliosPipeline": ("HeliosScheduler", dict(stages=1)),
    "HeliosPyramidPipeline": ("HeliosScheduler", dict(gamma=0.3)),
    "LEditsPPPipelineStableDiffusion": ("DPMSolverMultistepScheduler", _SDE),
    "LEditsPPPipelineStableDiffusionXL": ("DPMSolverMultistepScheduler", _SDE),
    "SanaSprintImg2ImgPipeline": ("SCMScheduler", {}), "SanaSprintPipeline": ("SCMScheduler", {}),
    "StableDiffusionParadigmsPipeline": ("DDIMParallelScheduler", {}),
}  # fmt: skip
"""Schedulers of pipelines whose annotation names one that does not work in them."""

ARGUMENTS: Mapping[str, Any] = {
    "default_denoising_steps": 8, "default_processing_resolution": 64, "latent_dim_scale": 8.0, "resolution": 64,
}  # fmt: skip
"""Values of constructor parameters that are no components."""


def list_builders(cls: type) -> Iterator[Callable[[], Any]]:
    """Ways to build a pipeline of a class, of other networks each; the weights are the same every time."""
    hints = typing.get_type_hints(cls.__init__)
    parameters = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]
    options = {p.name: _list_classes(hints.get(p.name)) or [None] for p in parameters}
    kinds = {name: found[0] for name, found in options.items()}
    choices = [
        [make for kind in options[p.name] for make in _list_builders(p, {**kinds, p.name: kind})] for p in parameters
    ]
    for chosen in filter(_agree, itertools.product(*choices)):
        makers = {p.name: make for p, make in zip(parameters, chosen, strict=True) if make is not _leave_out}
        if cls.__name__ in OWN_SCHEDULERS:
            kind, config = OWN_SCHEDULERS[cls.__name__]
            makers["scheduler"] = functools.partial(getattr(diffusers, kind), **config)
        yield functools.partial(_build, cls, makers)


def _agree(makers: Sequence[Callable[[], Any]]) -> bool:
    """Whether networks of one class have one config, such as the two experts of Wan 2.2; Stable Cascade's have not."""
    models = [make.args for make in makers if isinstance(make, functools.partial)]
    models = [(kind, config) for kind, config in models if kind is not diffusers.StableCascadeUNet]
    return all(config == other for kind, config in models for second, other in models if kind is second)


def _build(cls: type, makers: Mapping[str, Callable[[], Any]]) -> Any:
    torch.manual_seed(0)
    pipeline = cls(**{name: make() for name, make in makers.items()})
    for part in vars(pipeline).values():
        if isinstance(part, torch.nn.Module):
            _spread(part.eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _leave_out() -> None:
    """A parameter keeps its default."""


def _list_classes(hint: Any) -> list[Any]:
    """The classes that an annotation names, but for lists of them."""
    if isinstance(hint, types.GenericAlias) or hint is type(None):
        return []
    inner = [kind for part in typing.get_args(hint) for kind in _list_classes(part)]
    known = [kind for kind in inner if kind.__module__.startswith(("diffusers", "transformers"))]
    known = known[:1] if any("chedul" in kind.__name__ for kind in known) else known
    return known or inner[:1] or [hint]


def _list_builders(parameter: inspect.Parameter, kinds: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Ways to make the value of a constructor's parameter."""
    kind, name = kinds[parameter.name], parameter.name
    if name.startswith("requires_") or name in ("add_watermarker", "enable_safety_checker"):
        yield lambda: False
    elif name in ("prompt_enhancer", "duration_head"):
        yield _leave_out
    elif name == "scheduler" and kind is None:
        yield diffusers.FlowMatchEulerDiscreteScheduler
    elif name == "safety_checker" and "Cosmos" in getattr(kind, "__name__", ""):
        yield doubles.Passing
    elif name in ("safety_checker", "watermarker"):
        yield lambda: None
    elif name in ARGUMENTS:
        yield lambda: ARGUMENTS[name]
    elif kind in (bool, int, float, str) or kind is None:
        yield _leave_out
    elif not isinstance(kind, type):
        yield _leave_out if parameter.default is not inspect.Parameter.empty else lambda: None
    elif "chedul" in kind.__name__:
        yield lambda: _build_scheduler(kind, name, "transformer" in kinds)
    elif kind.__module__.startswith("transformers") or hasattr(kind, "config_class"):
        yield lambda: texts.build(kind, kinds.get("transformer"))
    elif hasattr(kind, "config_name") and issubclass(kind, torch.nn.Module):
        configs = MODELS.get(kind.__name__, {})
        configs = configs(kinds) if callable(configs) else configs
        for config in configs if isinstance(configs, list) else [configs]:
            yield functools.partial(build_model, kind, config)
    else:
        yield diffusers.ClassifierFreeGuidance if kind.__name__ == "BaseGuidance" else kind


def build_model(kind: type, config: Mapping[str, Any]) -> Any:
    """A network whose sizes are small by their names, but for those of ``config``."""
    parameters = inspect.signature(kind.__init__).parameters
    small = {
        name: value for name, value in SIZES.items() if name in parameters and parameters[name].default is not None
    }
    if hasattr(kind, "encode") or hasattr(kind, "decode"):
        small |= {name: 3 for name in ("in_channels", "out_channels") if name in parameters}
        widths = (
            p for p in parameters.values() if p.name.endswith("out_channels") and isinstance(p.default, tuple | list)
        )
        small |= {p.name: (8,) * len(p.default) for p in widths}
    return kind(**{**small, **config})


def _build_scheduler(kind: Any, part: str, has_transformer: bool) -> Any:
    name = "DDIMScheduler" if kind.__name__ == "KarrasDiffusionSchedulers" else kind.__name__
    if name == "SchedulerMixin":
        name = "FlowMatchEulerDiscreteScheduler" if has_transformer else "DDIMScheduler"
    return getattr(diffusers, name)(**SCHEDULERS.get(name, {}), **SCHEDULERS.get(f"{part}: {name}", {}))


def _spread(module: torch.nn.Module) -> None:
    """Replaces weights that start at zero, which would hide what they multiply."""
    for parameter in module.parameters():
        if parameter.ndim >= 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
