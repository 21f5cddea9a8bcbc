"""LoRA files, read by diffusers and peft."""

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.manifest import Manifest

_DORA = ("dora_scale", "lora_magnitude_vector")
_KINDS = ("lora", "lokr_")  # words in the names of weights that peft's layers take
_OTHER = "text_encoder"  # how the names of weights begin that are the pipeline's to load


def load_adapter(manifest: Manifest, file: Path, name: str, scale: float) -> Any:
    """A bundle's denoiser, without weights, with a LoRA file as its only adapter, which is active.

    Raises:
        ZeusError: A package is missing, or the file is no LoRA of this denoiser.
    """
    try:
        import diffusers
        import peft  # noqa: F401  (diffusers loads with it)
    except ImportError as error:
        raise ZeusError(f"adapter: got no {error.name}; expected it for reading LoRA files. Install it.") from error
    kind: Any = getattr(diffusers, manifest.denoiser_class, None)
    if not hasattr(kind, "load_lora_adapter"):
        raise ZeusError(
            f"adapter: got a bundle of a {manifest.denoiser_class}; expected a denoiser that diffusers loads LoRA "
            "into. Export the pipeline with the adapter active."
        )
    _check_file(file)
    try:
        with _silence():
            denoiser, prefix, weights = _read(manifest, kind, file, name)
        diffusers.utils.set_weights_and_activate_adapters(denoiser, [name], [scale])
    except ZeusError:
        raise
    except Exception as error:  # diffusers, peft and torch each raise their own
        raise ZeusError(
            f"adapter: got {file.name}, which does not fit a {manifest.denoiser_class} ({say_cause(error)}); expected "
            "a LoRA of this model. Use another file, or another bundle."
        ) from error
    _check_loaded(denoiser, file, name, [key.removeprefix(f"{prefix}.") for key in weights if _is_own(key, prefix)])
    return denoiser


def _read(manifest: Manifest, kind: Any, file: Path, name: str) -> tuple[Any, str | None, dict[str, torch.Tensor]]:
    """The denoiser with the adapter, how names of its weights begin in the file, and all weights of the file."""
    from accelerate import init_empty_weights

    with init_empty_weights():
        denoiser = kind.from_config(manifest.denoiser_config)
    weights, alphas, metadata = _convert(manifest, file, denoiser)
    prefix = _check_prefix(manifest, file, [*weights])
    zero = torch.zeros((), dtype=functools.reduce(torch.promote_types, (value.dtype for value in weights.values())))
    for part in denoiser.modules():  # peft puts an adapter where its layer's weights are, in their dtype
        for each, parameter in [*part.named_parameters(recurse=False)]:
            setattr(part, each, torch.nn.Parameter(zero.expand(parameter.shape), requires_grad=False))
    denoiser.load_lora_adapter(
        weights, prefix, adapter_name=name, network_alphas=alphas if prefix else None, metadata=metadata,
        low_cpu_mem_usage=True,
    )  # fmt: skip
    return denoiser, prefix, weights


def _check_file(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise ZeusError(f"adapter: got {file}; expected a .safetensors file that exists. Check the path.")
    try:
        with safe_open(file, "pt") as opened:
            keys = list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise ZeusError(
            f"adapter: got {file}, which cannot be read ({error}); expected a .safetensors file. Download it again."
        ) from error
    if found := next((key for key in keys if any(word in key for word in _DORA)), None):
        raise ZeusError(
            f"adapter: got {file.name} with {found}, a DoRA, which changes weights by more than a sum; expected a "
            "LoRA. Export the pipeline with the adapter active."
        )


def _convert(manifest: Manifest, file: Path, denoiser: Any) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """The file's weights under diffusers' names, their alphas, and the adapter's settings, if it holds them."""
    import diffusers

    read = getattr(getattr(diffusers, manifest.pipeline_class or "", None), "lora_state_dict", None)
    if read is None:
        from safetensors.torch import load_file

        return load_file(file), None, None
    asked = {"return_lora_metadata": True, "use_safetensors": True, "local_files_only": True}  # no pickle
    if manifest.component == "unet":
        asked["unet_config"] = denoiser.config
    if "return_alphas" in inspect.signature(read).parameters:
        asked["return_alphas"] = True
    weights, *more = read(str(file), **asked)
    metadata = more.pop()
    return weights, more[0] if more else None, metadata or None


def _check_prefix(manifest: Manifest, file: Path, keys: list[str]) -> str | None:
    """How the names of the denoiser's weights begin in the file; None where it holds these alone."""
    prefix = manifest.component.removesuffix("_2")  # the second expert's file calls it as the first
    parts = {key.partition(".")[0] for key in keys}
    if prefix not in parts and not any(part.startswith(_OTHER) for part in parts):
        return None
    if prefix not in parts or (other := [part for part in parts if part != prefix and not part.startswith(_OTHER)]):
        got = f"weights of {other[0]}" if prefix in parts else f"no weights of the {prefix}"
        raise ZeusError(
            f"adapter: got {file.name} with {got}; expected those of the {prefix}, and of text encoders at most. Use "
            "a LoRA of this model."
        )
    return prefix


def _is_own(key: str, prefix: str | None) -> bool:
    return prefix is None or key.startswith(f"{prefix}.")


def _check_loaded(denoiser: Any, file: Path, name: str, keys: list[str]) -> None:
    """Refuses a file of which something was left out, and one that lacks something."""
    from diffusers.utils import convert_unet_state_dict_to_peft
    from peft import get_peft_model_state_dict

    loaded = get_peft_model_state_dict(denoiser, adapter_name=name)
    given = dict.fromkeys(keys, "")
    renamed = convert_unet_state_dict_to_peft(given) if not any("lora_A" in key for key in keys) else given
    unknown = [key for key in renamed if key not in loaded or not any(word in key for word in _KINDS)]
    missing = [key for key, tensor in loaded.items() if tensor.is_meta]
    if unknown or missing:
        raise ZeusError(
            f"adapter: got {file.name} {f'with {unknown[0]}' if unknown else f'without {missing[0]}'}; expected the "
            f"factors of each weight of this {type(denoiser).__name__} that it changes, and no others. Use a LoRA of "
            "this model."
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps remarks of diffusers and peft off the terminal: what is wrong is raised."""
    logger = logging.getLogger("diffusers")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
