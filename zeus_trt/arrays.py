"""One reader for every .npz file: arrays of numbers or text, no pickle, and no more memory than the file says."""

import math
import os
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from zeus_trt.errors import ZeusError

if TYPE_CHECKING:
    import torch

LIMIT = 1 << 30
"""Bytes of all arrays of a file, unless the reader says otherwise."""

_NAMES = 1000  # arrays of a file
_KINDS = "biufU"  # of dtypes: booleans, integers, floats, text


def read_arrays(path: str | os.PathLike, thing: str, *, limit: int = LIMIT, advice: str = "Write it again.") -> dict:
    """Reads a .npz file.

    Args:
        path: The file.
        thing: What it is, for the message.
        limit: The most bytes of all arrays together, unpacked.
        advice: The last sentence of the message.

    Returns:
        The arrays by name.

    Raises:
        ZeusError: The file is missing or damaged, has more than ``limit`` bytes, or has an array of another kind or
            with another size than its header says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive.infolist(), limit)
            found = {}
            for info in archive.infolist():
                with archive.open(info) as file:
                    _check_header(file, info)
                with archive.open(info) as file:
                    found[info.filename.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
            return found
    except Exception as error:  # zipfile, zlib, lzma and numpy raise their own for a damaged file
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise ZeusError(
            f"{thing}: got {path}, which cannot be read ({reason}); expected an npz file. {advice}"
        ) from error


def read_tensors(path: str | os.PathLike, thing: str, *, limit: int = LIMIT) -> "dict[str, torch.Tensor]":
    """Reads tensors by name from a .safetensors or .npz file; arguments as in ``read_arrays``.

    Raises:
        ZeusError: As ``read_arrays``, or a file of another kind.
    """
    import torch

    if Path(path).suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ZeusError(
                f"{thing}: got {path}, which cannot be read ({error}); expected a safetensors file. Write it again."
            ) from error
    found = read_arrays(path, thing, limit=limit)
    if text := [name for name, array in found.items() if array.dtype.kind not in "biuf"]:
        raise ZeusError(f"{thing}: got text in {text[0]} of {path}; expected numbers. Write it again.")
    return {name: torch.from_numpy(array.astype(array.dtype.newbyteorder("="))) for name, array in found.items()}


def _check_sizes(members: list[zipfile.ZipInfo], limit: int) -> None:
    if not 1 <= len(members) <= _NAMES or len({info.filename for info in members}) < len(members):
        raise ValueError(f"it has no array, more than {_NAMES}, or two of one name")
    if (total := sum(info.file_size for info in members)) > limit:
        raise ValueError(f"its arrays have {total} bytes, more than {limit}")


def _check_header(file: IO[bytes], info: zipfile.ZipInfo) -> None:
    """Raises ValueError where numpy would make an array of another size than the file has."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers or not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename} is no array of numbers")
    shape, _, dtype = readers[version](file)
    if dtype.kind not in _KINDS or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename} is an array of {dtype}")
    if file.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.filename} has {info.file_size} bytes, which are not those of shape {shape}")
