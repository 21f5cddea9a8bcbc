"""The written form of programs: strict JSON that keeps every float exactly."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zeus_trt import strict_json
from zeus_trt.files import write_atomically

FORMAT = 1


def plain(value: Any) -> Any:
    """``value`` as strict JSON data: arrays become lists, numbers that JSON lacks become text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars
        return plain(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (Sequence, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def digest(data: Any) -> str:
    """SHA-256, in hex, of JSON data; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def check_format(data: Any, thing: str) -> None:
    """Raises ZeusError unless ``data`` is a JSON object of this version's format."""
    strict_json.check_format(data, FORMAT, thing, advice=f"make the {thing} again.")


def freeze(arrays: Sequence[Any], ndim: int) -> tuple[np.ndarray, ...]:
    """Read-only float64 copies.

    Raises:
        ValueError: An array has another number of dimensions, or a value that is not finite.
    """
    frozen = []
    for index, array in enumerate(arrays):
        copy = np.array(array, dtype=np.float64)
        if copy.ndim != ndim or not np.isfinite(copy).all():
            raise ValueError(f"entry {index} is no finite array of {ndim} dimensions")
        copy.setflags(write=False)
        frozen.append(copy)
    return tuple(frozen)


def save(path: str | os.PathLike, data: Any) -> None:
    """Writes JSON data; a reader sees the old file or the whole new one, never a part.

    Raises:
        ZeusError: The folder does not exist or cannot be written.
    """
    text = json.dumps(data, allow_nan=False) + "\n"
    with write_atomically(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def load(path: str | os.PathLike, thing: str) -> Any:
    """Reads JSON data.

    Args:
        path: The file.
        thing: What it is, for the message.

    Raises:
        ZeusError: The file is missing, unreadable, too large or no strict JSON.
    """
    advice = f"Check the path, or make the {thing} again."
    return strict_json.decode(strict_json.read_bytes(path, thing, advice=advice), thing, advice=advice)
