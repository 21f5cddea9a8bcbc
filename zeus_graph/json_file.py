"""The written form of programs: strict JSON that keeps every float exactly."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
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


P = TypeVar("P", bound="Program")


@dataclass(frozen=True, eq=False)
class Program:
    """Numbers that are written as a JSON file with their fingerprint: the fields of a subclass."""

    _thing: ClassVar[str]
    _advice: ClassVar[str]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of all that the program holds."""
        return digest(self._content())

    def to_json(self) -> dict[str, Any]:
        """The program as JSON data; ``from_json`` reads it back bit for bit."""
        return {**self._content(), "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls: type[P], data: Any) -> P:
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: An unknown format, or malformed content.
        """
        check_format(data, cls._thing)
        content = {name: value for name, value in data.items() if name not in ("format", "fingerprint")}
        if wrong := {field.name for field in fields(cls)} ^ content.keys():
            raise cls._refuse(f"it lacks a field, or has another: {', '.join(sorted(wrong))}")
        program = strict_json.build(content, cls, cls._thing, advice=cls._advice, read_other=read_array)
        if data.get("fingerprint") != program.fingerprint:
            raise cls._refuse("its fingerprint is that of another program")
        return program

    def save(self, path: str | os.PathLike) -> None:
        """Writes the program as a JSON file, whole or not at all."""
        save(path, self.to_json())

    @classmethod
    def load(cls: type[P], path: str | os.PathLike) -> P:
        """Reads a file that ``save`` wrote; raises ZeusError for any other."""
        return cls.from_json(load(path, cls._thing))

    def _content(self) -> dict[str, Any]:
        return {"format": FORMAT, **{field.name: plain(getattr(self, field.name)) for field in fields(self)}}

    @classmethod
    def _refuse(cls, reason: object) -> ZeusError:
        return ZeusError(f"{cls._thing}: got malformed content ({reason}); expected a {cls._thing}. {cls._advice}")


def read_array(type_: type, value: Any) -> np.ndarray:
    """A list of numbers as a float64 array, where ``type_`` is one; raises TypeError for anything else."""
    if type_ is not np.ndarray or not isinstance(value, list):
        raise TypeError(f"expected an array of numbers, got {type(value).__name__}")
    array = np.array(value)
    if array.dtype.kind not in "if":
        raise TypeError("expected an array of numbers")
    return array.astype(np.float64)
