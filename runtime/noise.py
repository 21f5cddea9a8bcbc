"""Initial noise, the same on every backend."""

import contextlib
import math
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_IMAGES, is_whole, show

_SEEDS = range(-(2**63), 2**64)  # what torch takes
_SMALL = 1 << 26  # bytes that are not worth a look
_COPIES = 4  # a run holds the latents, the model's input, its output and the next latents


def draw_noise(shape: Sequence[int], seed: int | Sequence[int]) -> torch.Tensor:
    """Standard normal noise of ``shape``, float32, drawn on the CPU.

    Args:
        shape: The batch first.
        seed: Of the whole batch; or one of each row, which then has the same noise in every batch.

    Raises:
        ZeusError: Not a seed, another number of seeds than rows, or more than fits in memory.
    """
    return draw_from(make_generators(read_seed(seed)), shape)


def make_generators(seed: int | Sequence[int]) -> torch.Generator | list[torch.Generator]:
    """A generator on the CPU, or one per row."""
    if isinstance(seed, int):
        return torch.Generator().manual_seed(seed)
    return [torch.Generator().manual_seed(one) for one in seed]


def read_seed(seed: Any, num_images: int = 1) -> int | list[int]:
    """Plain integers of whatever kind of integer, or of a sequence of such.

    Args:
        seed: One, or one per row.
        num_images: Image k is to draw from ``seed`` + k, which has to be a seed as well.

    Raises:
        ZeusError: Another kind of value, a number of more than 64 bits, or more seeds than there may be rows.
    """
    seed = list(islice(seed, MAX_IMAGES + 1)) if isinstance(seed, range) else seed
    seed = seed.tolist() if isinstance(seed, np.ndarray) else seed
    rows = seed if isinstance(seed, list | tuple) else None
    if rows is not None and len(rows) > MAX_IMAGES:
        raise ZeusError(f"seed: got more than {MAX_IMAGES} seeds; expected one per row. Give fewer.")
    for one in [seed] if rows is None else rows:
        if not is_whole(one) or int(one) not in _SEEDS or int(one) + num_images - 1 not in _SEEDS:
            last = f" for the last of {num_images} images" if num_images > 1 else ""
            raise ZeusError(
                f"seed: got {show(one)}; expected a whole number of 64 bits{last}, or one per row. Change it."
            )
    return int(seed) if rows is None else [int(one) for one in rows]


def draw_from(generators: torch.Generator | list[torch.Generator], shape: Sequence[int]) -> torch.Tensor:
    """Standard normal noise of ``shape``, float32, which moves the generators on: steps that draw go on from there.

    Raises:
        ZeusError: Another number of generators than rows, or more than fits in memory.
    """
    check_memory("noise", shape, _COPIES)
    if isinstance(generators, torch.Generator):
        return torch.randn(tuple(shape), generator=generators)
    if len(generators) != shape[0]:
        raise ZeusError(
            f"seed: got {len(generators)} seeds; expected {shape[0]}, one per row. Give one each, or a single one."
        )
    return torch.stack([torch.randn(tuple(shape[1:]), generator=generator) for generator in generators])


def check_memory(name: str, shape: Sequence[int], copies: int = 1) -> None:
    """Refuses float32 tensors that have no room in this machine, before they are made.

    Args:
        name: What they are, for the message.
        shape: Of one.
        copies: How many there are at the same time.

    Raises:
        ZeusError: Not a size, or fewer bytes are free.
    """
    if wrong := [size for size in shape if not is_whole(size) or size < 0]:
        raise ZeusError(f"{name}: got a size of {show(wrong[0])}; expected whole numbers. Change it.")
    needed = 4 * copies * math.prod(int(size) for size in shape)
    free = None if needed < _SMALL else _find_free_memory()
    if free is not None and needed > free:
        raise ZeusError(
            f"{name}: got {'x'.join(show(size) for size in shape)} numbers, {copies} times as float32, which take "
            f"{show(needed >> 20)} MiB; expected what fits in the {free >> 20} MiB that are free. Ask for fewer images "
            "at once, or smaller ones."
        )


def _find_free_memory() -> int | None:
    """Bytes of main memory that can be had, here or in this container; None where the system does not say."""
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))))
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    if not found:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows has no such call
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)
