"""The files that an ONNX graph reads besides itself, found without the onnx package and without parsing weights."""

import mmap
from collections.abc import Iterator
from pathlib import Path

from zeus_trt.runtime.bundle.protobuf import list_parts

_FIELDS: dict[str, dict[int, str]] = {  # message of onnx.proto -> number of a field -> the message in it
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "training": {1: "graph", 2: "graph"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
_KEY, _VALUE = 1, 2  # fields of an entry
_DEPTH = 64  # graphs inside graphs


def list_references(onnx: Path) -> set[str]:
    """Locations of external data, as they are written in the graph.

    Raises:
        ValueError: The file is no protocol buffer.
        OSError: The file cannot be read.
    """
    if not onnx.stat().st_size:
        return set()
    with onnx.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return set(_walk(content, 0, len(content), "model", 0))


def _walk(content: mmap.mmap, start: int, end: int, message: str, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        raise ValueError(f"it is nested deeper than {_DEPTH} levels")
    key, value = b"", b""
    for number, low, high in list_parts(content, start, end):
        if message == "entry":
            key = content[low:high] if number == _KEY else key
            value = content[low:high] if number == _VALUE else value
        elif inner := _FIELDS[message].get(number):
            yield from _walk(content, low, high, inner, depth + 1)
    if key == b"location":
        yield value.decode("utf-8")
