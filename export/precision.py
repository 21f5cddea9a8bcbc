"""The denoiser in another precision: a copy with cast weights, and a call with cast inputs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import Capture
from zeus_trt.export.inputs import CONDITIONING, FIXED, LATENTS
from zeus_trt.export.shallow_copy import copy_structure
from zeus_trt.runtime.bundle.precision import FLOATS, QUANTIZED, Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.pipelines.side_effects import unwrap
from zeus_trt.runtime.pipelines.weights_digest import choose_dtypes

# Of the relative error to float32. For the halves twenty of their roundings, 2**-11 and 2**-8: networks of real depth
# stay within ten, and a wrong graph is off by far more. For 8 bits that of the gate of `zeus-trt quantize`.
TOLERANCES: dict[str, float] = {
    Precision.FP32: 1e-4, Precision.FP16: 1e-2, Precision.BF16: 8e-2, **dict.fromkeys(QUANTIZED, 0.5)
}  # fmt: skip
_SAFETENSORS = {"F32": Precision.FP32, "F16": Precision.FP16, "BF16": Precision.BF16}

_FLOATS = [precision.dtype for precision in FLOATS]


def read_precision(name: str) -> Precision:
    """The precision of that name, in which export writes graphs.

    Raises:
        ZeusError: There is no such precision.
    """
    if name not in FLOATS:
        raise ZeusError(f"precision: got {name}; expected one of {', '.join(FLOATS)}. Choose one of them.")
    return Precision(name)


def check_precision(denoiser: torch.nn.Module, asked: str, force: bool = False) -> None:
    """Refuses one half precision for weights that were made in the other: bf16 reaches further, fp16 is finer.

    Args:
        denoiser: The user's module; the files that it was loaded from count if it is in float32 now.
        asked: Name of the precision to export in.
        force: Accept it anyway.

    Raises:
        ZeusError: They disagree, or there is no such precision.
    """
    read_precision(asked)
    found = find_precision(denoiser)
    if not force and {found, asked} == {"fp16", "bf16"}:
        loss = "overflow" if asked == "fp16" else "lose digits"
        raise ZeusError(
            f"precision: got {asked} for weights in {found}, which may {loss}; expected {found} or fp32. "
            f"Export in {found}, or force {asked}."
        )


def find_precision(denoiser: torch.nn.Module) -> Precision | None:
    """The precision of most of the weights: of the module, or of the files if it was loaded into float32."""
    counts: Counter[Precision | None] = Counter()
    for parameter in denoiser.parameters():
        counts[Precision.of(parameter.dtype)] += parameter.numel()
    if counts and (found := counts.most_common(1)[0][0]) != Precision.FP32:
        return found
    folder = Path(getattr(getattr(denoiser, "config", None), "_name_or_path", None) or "no folder")
    counts = sum((count_numbers(file) for file in folder.glob("*.safetensors")), start=Counter())
    return counts.most_common(1)[0][0] if counts else Precision.FP32


def cast_capture(captured: Capture, precision: str, keep_fp32: Sequence[str] = ()) -> Capture:
    """The same call with a copy in ``precision`` for a denoiser; the user's module is not touched.

    Latents and conditioning are cast. What counts stays float32: numbers per row, such as timestep and guidance, and
    what follows from the sizes alone, such as positions; a half cannot hold them.

    Raises:
        ZeusError: No such precision, or a pattern that fits no module.
    """
    dtype = read_precision(precision).dtype
    dtypes = {spec.name: _choose_dtype(spec, dtype) for spec in captured.inputs}
    border = replace(captured.border, dtypes=dtypes)
    return replace(captured, denoiser=cast_module(captured.denoiser, dtype, keep_fp32), border=border)


def cast_module(module: torch.nn.Module, dtype: torch.dtype, keep_fp32: Sequence[str] = ()) -> Any:
    """A copy in eval mode with the weights in ``dtype``; those that are in it already are shared.

    Modules that diffusers itself keeps in float32 (``_keep_in_fp32_modules``) stay so.

    Args:
        module: The user's module.
        dtype: Of the weights.
        keep_fp32: Patterns of module names, such as ``down_blocks.0.*``: these modules run in float32, with casts
            around them.

    Raises:
        ZeusError: A pattern that fits no module.
    """
    module = unwrap(module)
    blocks = _find_blocks(module, keep_fp32)
    chosen = choose_dtypes(module, dtype, keep_fp32)
    dtypes = {id(tensor): chosen[name] for name, tensor in module.state_dict(keep_vars=True).items()}
    copied = copy_structure(module, lambda tensor: _cast(tensor, dtypes.get(id(tensor))))
    if dtype != torch.float32:
        for name in blocks:
            _run_in_float32(copied.get_submodule(name), dtype)
    return copied.eval()


def to_float32(values: Any) -> Any:
    """The same nested values with every floating-point tensor in float32."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _cast(tensor, torch.float32), values)


def cast_inputs(captured: Capture, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor | int]:
    """Values of the captured inputs, in their order and dtypes."""
    return [
        int(inputs[spec.name]) if spec.value else inputs[spec.name].to(getattr(torch, spec.dtype))
        for spec in captured.inputs
    ]


def _choose_dtype(spec: TensorSpec, dtype: torch.dtype) -> torch.dtype:
    return dtype if len(spec.axes) > 1 and spec.role in (LATENTS, CONDITIONING, FIXED) else torch.float32


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    """A floating-point tensor in ``dtype``; anything else, and float64, as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS or dtype in (None, value.dtype):
        return value
    cast = value.detach().to(dtype)
    return torch.nn.Parameter(cast, requires_grad=False) if isinstance(value, torch.nn.Parameter) else cast


def _find_blocks(module: torch.nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules that fit a pattern and are inside no other that does."""
    names = [name for name, _ in module.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ZeusError(
                f"keep_fp32: got {pattern}, which fits no module of {type(module).__name__}; expected a pattern such "
                f"as {names[0] if names else '*'}. See named_modules()."
            )
    found = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return tuple(name for name in found if not is_inside(name, found))


def is_inside(name: str, blocks: Iterable[str]) -> bool:
    return any(name.startswith(f"{block}.") for block in blocks)


def _run_in_float32(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Hooks, not another ``forward``: copies of the module keep them."""

    def widen(module, args, kwargs):
        return to_float32(args), to_float32(kwargs)

    def narrow(module, args, output):
        return pytree.tree_map_only(torch.Tensor, lambda tensor: _cast(tensor, dtype), output)

    module.register_forward_pre_hook(widen, with_kwargs=True)
    module.register_forward_hook(narrow)


def count_numbers(file: Path) -> Counter[Precision | None]:
    """Numbers per precision, read off the header of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    counts: Counter[Precision | None] = Counter()
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                part = opened.get_slice(name)
                counts[_SAFETENSORS.get(part.get_dtype())] += prod(part.get_shape())
    except (SafetensorError, OSError) as error:
        raise ZeusError(
            f"model: got {file}, which cannot be read ({error}); expected whole safetensors files. "
            "Download or save the model again."
        ) from error
    return counts
