"""How other accelerations are applied to a model: the caches of diffusers, cache-dit, and published criteria."""

import contextlib
import importlib
import importlib.util
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from zeus_trt.evaluation.peer import ABSENT, Peer, UnsupportedError

_CONTEXT = "all rows"  # guidance is one batched call here, so one history serves all rows
_BLOCK_PARTS = r".*blocks\.\d+\.(attn\d|ff)"  # attention and feed-forward of a block, as in the method's paper
_BLOCKS = r"transformer_blocks\.\d+"
_HOOKED = ("forward", "_diffusers_hook", "_cache_config")  # what diffusers leaves in a module's __dict__


@dataclass(frozen=True)
class Situation:
    """The facts about a run that a peer needs.

    Args:
        num_calls: Calls of the denoiser per run.
        guided: Whether the batch is unconditional rows first, then conditional ones.
        num_axes: Of the latents.
        is_flow: Whether the denoiser predicts a flow.
        run: Makes one run, for a peer that calibrates itself.
        calibrated: Results of such calibrations, kept for the next run.
    """

    num_calls: int
    guided: bool
    num_axes: int
    is_flow: bool
    run: Callable[[], Any]
    calibrated: dict[str, list[float]] = field(default_factory=dict)


@contextmanager
def apply_peer(peer: Peer, module: torch.nn.Module, situation: Situation) -> Iterator[None]:
    """Accelerates ``module`` while the block runs; one run per block, since caches keep state.

    Raises:
        UnsupportedError: The peer does not know this model, is not installed, or does not run here at all.
    """
    if peer.name in ABSENT:
        raise UnsupportedError(ABSENT[peer.name])
    if peer.name == "sada" and not situation.is_flow:
        raise UnsupportedError("its criterion is here for models that predict a flow")
    if peer.policy:
        yield
        return
    with _restored(module), _quiet(), _watch_timestep(module) as read_timestep:
        try:
            if peer.name == "cache-dit":
                stop = _apply_cache_dit(peer, module)
            else:
                _apply_diffusers(peer, module, situation, read_timestep)
                stop = contextlib.nullcontext()
        except Exception as error:  # every cache refuses in its own way: IndexError, KeyError, ValueError ...
            raise UnsupportedError(_explain(error)) from error
        with stop, _cache_context(module):
            yield


def _apply_diffusers(
    peer: Peer, module: torch.nn.Module, situation: Situation, read_timestep: Callable[[], float]
) -> None:
    from diffusers import hooks
    from diffusers.hooks import mag_cache

    apply: dict[str, Callable[..., None]] = {
        "first-block-cache": hooks.apply_first_block_cache,
        "taylorseer": hooks.apply_taylorseer_cache,
        "taylorseer-lite": hooks.apply_taylorseer_cache,
        "pab": hooks.apply_pyramid_attention_broadcast,
        "mag-cache": mag_cache.apply_mag_cache,
        "faster-cache": hooks.apply_faster_cache,
    }
    config = _make_config(peer, module, situation, read_timestep)
    before = _count_hooks(module)
    apply[peer.name](module, config)
    layers = _count_hooks(module) - before - (1 if peer.name == "faster-cache" else 0)
    if layers <= 0:
        raise UnsupportedError(f"it finds no layer of {type(module).__name__} that it knows")


def _make_config(peer: Peer, module: torch.nn.Module, situation: Situation, read_timestep: Callable[[], float]) -> Any:
    from diffusers import hooks

    steps = int(peer.value)
    match peer.name:
        case "first-block-cache":
            return hooks.FirstBlockCacheConfig(threshold=peer.value)
        case "taylorseer":
            layers = None if _has_joint_attention(module) else [_BLOCK_PARTS]
            return hooks.TaylorSeerCacheConfig(
                cache_interval=steps, taylor_factors_dtype=torch.float32, cache_identifiers=layers
            )
        case "taylorseer-lite":
            return hooks.TaylorSeerCacheConfig(
                cache_interval=steps, taylor_factors_dtype=torch.float32, **_find_lite_layers(module)
            )
        case "pab":
            return hooks.PyramidAttentionBroadcastConfig(
                spatial_attention_block_skip_range=steps, current_timestep_callback=read_timestep
            )
        case "mag-cache":
            ratios = _calibrate_mag_cache(module, situation)
            return hooks.MagCacheConfig(
                threshold=peer.value, num_inference_steps=situation.num_calls, mag_ratios=ratios
            )
    return hooks.FasterCacheConfig(
        spatial_attention_block_skip_range=2, unconditional_batch_skip_range=steps,
        current_timestep_callback=read_timestep, attention_weight_callback=lambda _: 0.3,
        is_guidance_distilled=not situation.guided,
        tensor_format="BCHW" if situation.num_axes == 4 else "BCFHW",
        _unconditional_conditional_input_kwargs_identifiers=[
            "hidden_states", "encoder_hidden_states", "timestep", "attention_mask", "encoder_attention_mask",
            "class_labels", "sample",
        ],
    )  # fmt: skip


def _has_joint_attention(module: torch.nn.Module) -> bool:
    """Whether blocks name their attention as diffusers' TaylorSeer expects by default."""
    return any(re.fullmatch(r".*blocks\.\d+\.attn", name) for name, _ in module.named_modules())


def _find_lite_layers(module: torch.nn.Module) -> dict[str, Any]:
    """The lite mode: blocks do nothing at skipped steps, and the last projection forecasts its output."""
    if hasattr(module, "proj_out"):
        return {"use_lite_mode": True}
    if not hasattr(module, "proj_out_2"):
        raise UnsupportedError(f"its lite mode forecasts the layer proj_out, which {type(module).__name__} has not")
    return {"skip_predict_identifiers": [_BLOCKS], "cache_identifiers": ["proj_out_2"]}  # DiT names it so


def _calibrate_mag_cache(module: torch.nn.Module, situation: Situation) -> list[float]:
    """Ratios of the residuals' sizes from step to step, as MagCache measures them itself."""
    from diffusers import hooks
    from diffusers.hooks import mag_cache

    if "mag-cache" in situation.calibrated:
        return situation.calibrated["mag-cache"]
    endless = situation.num_calls + 1  # at the last step it would print its ratios and drop them
    with _restored(module):
        mag_cache.apply_mag_cache(module, hooks.MagCacheConfig(calibrate=True, num_inference_steps=endless))
        states = [
            hook.state_manager
            for part in module.modules()
            for hook in getattr(getattr(part, "_diffusers_hook", None), "hooks", {}).values()
            if hasattr(hook, "state_manager")
        ]
        with _cache_context(module):
            situation.run()
            situation.calibrated["mag-cache"] = list(states[0].get_state().calibration_ratios)
    return situation.calibrated["mag-cache"]


def _apply_cache_dit(peer: Peer, module: torch.nn.Module) -> contextlib.AbstractContextManager:
    if importlib.util.find_spec("cache_dit") is None:
        raise UnsupportedError("cache-dit is not installed: pip install cache-dit")
    cache_dit: Any = importlib.import_module("cache_dit")

    blocks = next((part for part in module.children() if isinstance(part, torch.nn.ModuleList)), None)
    if blocks is None:
        raise UnsupportedError(f"it finds no list of blocks in {type(module).__name__}")
    adapter = cache_dit.BlockAdapter(
        transformer=module,
        blocks=blocks,
        forward_pattern=cache_dit.ForwardPattern.Pattern_3,
        check_forward_pattern=False,
    )
    first = min(8, len(blocks) // 2)  # its default is 8 blocks that always run
    config = cache_dit.DBCacheConfig(residual_diff_threshold=peer.value, Fn_compute_blocks=first)
    cache_dit.enable_cache(adapter, cache_config=config)
    stop = contextlib.ExitStack()
    stop.callback(cache_dit.disable_cache, adapter)
    return stop


def _cache_context(module: torch.nn.Module) -> contextlib.AbstractContextManager:
    from diffusers.models.cache_utils import CacheMixin

    return CacheMixin.cache_context(module, _CONTEXT)  # models without the mixin can be hooked all the same


@contextmanager
def _watch_timestep(module: torch.nn.Module) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the timestep of the current call, on the scale of 0 to 1000."""
    seen, largest = 0.0, 0.0

    def note(_: torch.nn.Module, args: tuple, inputs: dict[str, Any]) -> None:
        nonlocal seen, largest
        timestep = inputs.get("timestep", args[1] if len(args) > 1 else None)
        seen = float(torch.as_tensor(timestep).flatten()[0])
        largest = max(largest, seen)

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield lambda: seen * 1000 if largest <= 1.0 else seen
    finally:
        handle.remove()


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Removes every hook that diffusers adds to ``module`` and its parts inside the block."""
    before = {part: {name: vars(part)[name] for name in _HOOKED if name in vars(part)} for part in module.modules()}
    known = {part: set(was["_diffusers_hook"].hooks) for part, was in before.items() if "_diffusers_hook" in was}
    try:
        yield
    finally:
        for part, was in before.items():
            registry: Any = vars(part).get("_diffusers_hook")
            for name in [name for name in getattr(registry, "hooks", {}) if name not in known.get(part, ())]:
                registry.remove_hook(name, recurse=False)
            for name in _HOOKED:
                if name in was:
                    setattr(part, name, was[name])
                elif name in vars(part):
                    delattr(part, name)
        for part in known:
            vars(part)["_diffusers_hook"].invalidate_child_registries_cache()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the logs of the caches, and torch's warnings about the functions that they use."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _count_hooks(module: torch.nn.Module) -> int:
    return sum(len(getattr(getattr(part, "_diffusers_hook", None), "hooks", ())) for part in module.modules())


def _explain(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return str(error)
    if isinstance(error, IndexError):  # diffusers' caches of blocks take the first one unseen
        return "it finds no list of transformer blocks that it knows"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
