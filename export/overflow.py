"""Where a denoiser stops being finite, and which blocks to keep in float32."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.export.precision import cast_module, is_inside, to_float32

LARGEST = torch.finfo(torch.float16).max


def find_nonfinite(module: torch.nn.Module, call: Callable[[], Any]) -> str | None:
    """Path of the first submodule whose output is not finite during ``call``; empty for the module itself."""
    found: list[str] = []

    def look(name: str, values: Any) -> None:
        if not found and not _is_finite(values):
            found.append(name)

    with _watch(module, lambda name, args, output: look(name, output)), torch.inference_mode():
        call()
    return found[0] if found else None


def find_blocks_to_keep(
    denoiser: torch.nn.Module, arguments: Mapping[str, Any], run: Callable[[Any], Any], keep_fp32: Sequence[str] = ()
) -> tuple[str, ...]:
    """The smallest blocks that make fp16 finite if they run in float32, found by trying.

    A block takes and gives values that fit in fp16: the overflow is inside.

    Args:
        denoiser: The user's module.
        arguments: Keyword arguments of ``forward``, to find out in float32 how large values become.
        run: Runs a twin in fp16 on the same inputs.
        keep_fp32: Patterns that are kept already.

    Returns:
        Names of modules; none if only the whole model would do.
    """
    reach: dict[str, float] = {}
    eager = cast_module(denoiser, torch.float32)
    watch = _watch(eager, lambda name, args, output: reach.update({name: _find_largest((args, output))}))
    with watch, torch.inference_mode():
        eager(**to_float32(arguments))
    kept: list[str] = []
    while True:
        twin = cast_module(denoiser, torch.float16, (*keep_fp32, *kept))
        name = find_nonfinite(twin, partial(run, twin))
        if name is None:
            return tuple(block for block in kept if not is_inside(block, kept))
        while name and (name in kept or is_inside(name, kept) or not reach.get(name, LARGEST + 1) <= LARGEST):
            name = name.rpartition(".")[0]
        if not name:
            return ()
        kept.append(name)


@contextlib.contextmanager
def _watch(module: torch.nn.Module, see: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Shows ``see`` the name, inputs and output of every submodule that runs, the innermost first."""

    def hook(name: str) -> Callable:
        return lambda module, args, kwargs, output: see(name, (args, kwargs), output)

    handles = [part.register_forward_hook(hook(name), with_kwargs=True) for name, part in module.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _list_floats(values: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel()]


def _is_finite(values: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _list_floats(values))


def _find_largest(values: Any) -> float:
    return max((float(tensor.abs().max()) for tensor in _list_floats(values)), default=0.0)
