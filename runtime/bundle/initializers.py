"""The weights of an ONNX graph, read without the onnx package."""

import math
import mmap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from zeus_trt.runtime.bundle.protobuf import Content, list_integers, list_parts

_GRAPH, _INITIALIZER = 7, 5  # numbers of fields in onnx.proto
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA = 1, 2, 8, 9, 13
_KEY, _VALUE = 1, 2
_DTYPES = {1: torch.float32, 10: torch.float16, 16: torch.bfloat16, 11: torch.float64}


@dataclass(frozen=True)
class Initializer:
    """Where the numbers of an initializer are.

    Args:
        file: The graph, or the file beside it that holds its weights.
        offset: First byte in that file.
        shape: Of the tensor.
        dtype: Of its numbers, which are little-endian and in C order.
        is_external: Whether they are in another file than the graph.
    """

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_external: bool

    def read(self) -> torch.Tensor:
        """The numbers.

        Raises:
            OSError: The file cannot be read.
            ValueError: It ends before them.
        """
        size = math.prod(self.shape) * self.dtype.itemsize
        if self.offset + size > self.file.stat().st_size:
            raise ValueError(f"{self.file.name} ends before its weights do")
        content = bytearray(size)
        with self.file.open("rb") as file:
            file.seek(self.offset)
            file.readinto(content)
        return torch.frombuffer(content, dtype=self.dtype).view(self.shape)


def find_initializers(onnx: Path, names: Collection[str]) -> dict[str, Initializer]:
    """The floating-point initializers of these names that the graph itself has.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no graph.
    """
    found = {}
    with onnx.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for graph, low, high in list_parts(content, 0, len(content)):
            for number, start, end in list_parts(content, low, high) if graph == _GRAPH else ():
                if number != _INITIALIZER:
                    continue
                name, initializer = _read(content, start, end, onnx)
                if initializer and name in names:
                    found[name] = initializer
    return found


def _read(content: Content, start: int, end: int, onnx: Path) -> tuple[str, Initializer | None]:
    name, offset, entries = "", None, {}
    for number, low, high in list_parts(content, start, end):
        if number == _NAME:
            name = bytes(content[low:high]).decode()
        elif number == _RAW_DATA:
            offset = low
        elif number == _EXTERNAL_DATA:
            parts = {part: bytes(content[first:last]).decode() for part, first, last in list_parts(content, low, high)}
            entries[parts.get(_KEY)] = parts.get(_VALUE, "")
    file = onnx
    if "location" in entries:
        file, offset = onnx.parent / entries["location"], int(entries.get("offset") or 0)
    dtype = next((_DTYPES.get(kind) for kind in list_integers(content, start, end, _DATA_TYPE)), None)
    shape = tuple(list_integers(content, start, end, _DIMS))
    if dtype is None or offset is None:
        return name, None
    return name, Initializer(file, offset, shape, dtype, file is not onnx)
