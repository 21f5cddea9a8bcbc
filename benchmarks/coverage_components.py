"""Tiny random components of diffusers pipelines: a table of component classes, not of pipelines.

A size is small by the name of its parameter (``SIZES``); a class that needs more has a row in ``MODELS``. Where pipelines
need different networks of one class, such as an inpainting denoiser, the row holds alternatives: the first with which
the plain pipeline runs is taken.
"""

# ruff: noqa: C408  (a config reads better as keywords)

import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import coverage_texts as texts
import diffusers
import torch

WIDTH = texts.WIDTH
LATENT = 4  # channels of latents

SIZES: Mapping[str, Any] = {
    "attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 2, "num_single_layers": 1, "num_refiner_layers": 1,
    "num_mmdit_layers": 1, "num_single_dit_layers": 1, "joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH,
    "cross_attention_dim": WIDTH, "caption_channels": WIDTH, "text_embed_dim": WIDTH, "text_dim": WIDTH,
    "caption_projection_dim": 32, "pos_embed_max_size": 64, "axes_dims_rope": (4, 6, 6), "rope_axes_dim": (4, 6, 6),
    "freq_dim": 16, "ffn_dim": 32, "time_embed_dim": 16, "condition_dim": 8, "sample_height": 8, "sample_width": 8,
    "sample_frames": 9, "in_channels": LATENT, "out_channels": LATENT, "latent_channels": LATENT, "z_dim": LATENT,
    "norm_num_groups": 4, "layers_per_block": 1, "num_single_attention_layers": 1, "cap_feat_dim": WIDTH,
    "in_text_dim": WIDTH, "in_text_dim2": WIDTH, "rope_max_seq_len": 64, "intermediate_size": 32, "num_res_blocks": 1,
    "base_dim": 4, "dim_mult": [1, 1, 1, 1], "latents_mean": [0.0] * LATENT, "latents_std": [1.0] * LATENT,
    "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "context_in_dim": WIDTH, "text_in_dim": WIDTH,
    "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cross_attention_dim_t5": WIDTH,
    "num_kv_heads": 2, "text_encoder_dim": WIDTH, "approximator_num_channels": 8, "approximator_hidden_dim": 16,
    "approximator_layers": 1, "adaln_lora_dim": 4, "encoder_hid_dim": WIDTH, "time_embedding_dim": 16,
    "conditioning_embedding_out_channels": (4, 8), "num_text_blocks": 1, "num_visual_blocks": 1,
}  # fmt: skip
"""Values by the name of a parameter; only for parameters that a class has, and whose default is no None."""

_UNET = dict(
    sample_size=8, block_out_channels=(8, 16), attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
_UNET_XL = dict(
    _UNET, cross_attention_dim=2 * WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
    projection_class_embeddings_input_dim=6 * 8 + WIDTH, use_linear_projection=True,
)  # fmt: skip
_VAE = dict(
    block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    in_channels=3, out_channels=3,
)  # fmt: skip
_PACKED = dict(in_channels=4 * LATENT, out_channels=None)


def _refine(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a refiner, whose pictures have an aesthetic score and whose text encoder is the second one."""
    return dict(config, cross_attention_dim=WIDTH, projection_class_embeddings_input_dim=5 * 8 + WIDTH)


def _unets(beside: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "text_encoder_2" in beside:
        return [_UNET_XL, dict(_UNET_XL, in_channels=2 * LATENT), dict(_UNET_XL, time_cond_proj_dim=16)]
    simple = dict(_UNET, down_block_types=("SimpleCrossAttnDownBlock2D", "ResnetDownsampleBlock2D"), up_block_types=(
        "ResnetUpsampleBlock2D", "SimpleCrossAttnUpBlock2D"), mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        attention_head_dim=4, resnet_time_scale_shift="scale_shift", out_channels=2 * LATENT)  # fmt: skip
    pixels = dict(simple, in_channels=3, out_channels=6, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_proj")
    kandinsky2 = dict(simple, encoder_hid_dim=WIDTH, encoder_hid_dim_type="image_proj", addition_embed_type="image",
        cross_attention_dim=WIDTH)
    if "movq" in beside:
        both = dict(simple, encoder_hid_dim=WIDTH, encoder_hid_dim_type="text_image_proj", addition_embed_type="text_image")
        hint = dict(kandinsky2, addition_embed_type="image_hint", in_channels=2 * LATENT)
        return [kandinsky2, both, dict(kandinsky2, in_channels=9), dict(both, in_channels=9), hint]
    if "watermarker" in beside:
        return [pixels, dict(pixels, in_channels=6, class_embed_type="timestep")]
    if "image_noising_scheduler" in beside:
        return [dict(_UNET, class_embed_type="projection", projection_class_embeddings_input_dim=2 * WIDTH)]
    if "low_res_scheduler" in beside:
        return [dict(_UNET, in_channels=LATENT + 3, num_class_embeds=1000)]
    return [
        _UNET, dict(_UNET, in_channels=9), dict(_UNET, in_channels=2 * LATENT), dict(_UNET, in_channels=5),
        dict(_UNET, time_cond_proj_dim=16),
        dict(_UNET, class_embed_type="simple_projection", projection_class_embeddings_input_dim=WIDTH,
             class_embeddings_concat=True, cross_attention_dim=None),
        dict(_UNET, in_channels=2 * LATENT, out_channels=2 * LATENT + 1, time_cond_proj_dim=16),
    ]  # fmt: skip


MODELS: Mapping[str, Any] = {
    "UNet2DConditionModel": _unets,
    "AutoencoderKL": dict(_VAE, shift_factor=0.0),
    "UNet2DModel": [
        dict(sample_size=16, block_out_channels=(8, 16), attention_head_dim=4, in_channels=3, out_channels=3,
             down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
        dict(sample_size=16, block_out_channels=(8, 16), attention_head_dim=4, in_channels=6, out_channels=3,
             down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    ],
    "VQModel": dict(_VAE, block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=16, vq_embed_dim=LATENT),
    "ControlNetModel": lambda beside: [
        {k: v for k, v in (_UNET_XL if "text_encoder_2" in beside else _UNET).items() if k in _CONTROL}
        | {"conditioning_embedding_out_channels": (4, 4, 4, 8)}
    ],
    "PriorTransformer": dict(embedding_dim=WIDTH, num_embeddings=texts.LENGTH),
    "FluxTransformer2DModel": [
        dict(_PACKED, patch_size=1, guidance_embeds=True), dict(in_channels=32, out_channels=16, guidance_embeds=True),
        dict(in_channels=16 + 16 + 256, out_channels=16, guidance_embeds=True),
    ],
    "FluxControlNetModel": dict(in_channels=16),
    "SD3Transformer2DModel": dict(sample_size=32, joint_attention_dim=2 * WIDTH, pooled_projection_dim=2 * WIDTH),
    "SD3ControlNetModel": dict(sample_size=32, joint_attention_dim=2 * WIDTH, pooled_projection_dim=2 * WIDTH),
    "WanTransformer3DModel": [
        dict(attention_head_dim=12), dict(attention_head_dim=12, in_channels=2 * LATENT + 4),
        dict(attention_head_dim=12, in_channels=2 * LATENT + 4, image_dim=WIDTH, added_kv_proj_dim=24),
        dict(attention_head_dim=12, in_channels=2 * LATENT),
    ],
}  # fmt: skip
"""By class: a config, alternatives, or a function that makes them of the classes beside it in the pipeline."""

_CONTROL = frozenset(inspect.signature(diffusers.ControlNetModel.__init__).parameters)

SCHEDULERS: Mapping[str, Mapping[str, Any]] = {}


def build_pipelines(cls: type) -> Iterator[Any]:
    """Pipelines of a class, of other networks each; the weights are the same every time.

    Raises:
        Exception: What a component's class raises.
    """
    hints = typing.get_type_hints(cls.__init__)
    parameters = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]
    kinds = {p.name: _find_class(hints.get(p.name)) for p in parameters}
    choices = [list(_list_builders(p, kinds)) for p in parameters]
    for chosen in itertools.product(*choices):
        torch.manual_seed(0)
        parts = {p.name: make() for p, make in zip(parameters, chosen, strict=True) if make is not _leave_out}
        pipeline = cls(**parts)
        for part in {**vars(pipeline), **pipeline.components}.values():
            if isinstance(part, torch.nn.Module):
                _spread(part.eval())
        pipeline.set_progress_bar_config(disable=True)
        yield pipeline


def _leave_out() -> None:
    """A parameter keeps its default."""


def _find_class(hint: Any) -> Any:
    """The first class of an annotation."""
    while (inner := typing.get_args(hint)) and not isinstance(hint, type):
        hint = inner[0]
    return hint


def _list_builders(parameter: inspect.Parameter, kinds: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Ways to make the value of a constructor's parameter."""
    kind, name = kinds[parameter.name], parameter.name
    if name.startswith("requires_") or name in ("add_watermarker", "enable_safety_checker"):
        yield lambda: False
    elif name in ("safety_checker", "watermarker") and "Cosmos" not in getattr(kind, "__name__", ""):
        yield lambda: None
    elif kind in (bool, int, float, str) or kind is None:
        yield _leave_out
    elif not isinstance(kind, type):
        yield _leave_out if parameter.default is not inspect.Parameter.empty else lambda: None
    elif "chedul" in kind.__name__:
        yield lambda: _build_scheduler(kind)
    elif kind.__module__.startswith("transformers"):
        yield lambda: texts.build(kind)
    elif hasattr(kind, "config_name") and issubclass(kind, torch.nn.Module):
        configs = MODELS.get(kind.__name__, {})
        configs = configs(kinds) if callable(configs) else configs
        for config in configs if isinstance(configs, list) else [configs]:
            yield lambda config=config: build_model(kind, config)
    else:
        yield lambda: kind()


def build_model(kind: type, config: Mapping[str, Any]) -> Any:
    """A network whose sizes are small by their names, but for those of ``config``."""
    parameters = inspect.signature(kind.__init__).parameters
    small = {name: value for name, value in SIZES.items() if name in parameters and parameters[name].default is not None}
    return kind(**{**small, **config})


def _build_scheduler(kind: Any) -> Any:
    name = kind.__name__
    name = {"KarrasDiffusionSchedulers": "DDIMScheduler", "SchedulerMixin": "DDIMScheduler"}.get(name, name)
    return getattr(diffusers, name)(**SCHEDULERS.get(name, {}))


def _spread(module: torch.nn.Module) -> None:
    """Replaces weights that start at zero, which would hide what they multiply."""
    for parameter in module.parameters():
        if parameter.ndim >= 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
