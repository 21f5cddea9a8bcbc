"""One reader for every JSON file: a file from anywhere is data, and a bad one is one sentence."""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from zeus_trt.errors import ZeusError

LIMIT = 1 << 24
"""Bytes of a file, unless the reader says otherwise."""

DEPTH = 64
"""Levels of arrays and objects inside each other."""

ADVICE = "Write the file again."

_INFINITE = (math.inf, -math.inf)
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|([\[{])|[\]}]', re.DOTALL)  # a string, open or not, or a bracket
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
T = TypeVar("T")


def read(path: str | os.PathLike, type_: type[T], thing: str, *, limit: int = LIMIT, advice: str = ADVICE) -> T:
    """Reads a JSON file into ``type_``.

    Args:
        path: The file.
        type_: A dataclass whose annotations are the schema, or another type such as ``dict[str, Any]``.
        thing: What the file is, for the message.
        limit: The most bytes that the file may have.
        advice: The last sentence of the message.

    Raises:
        ZeusError: The file is missing, too large or unreadable, or as ``parse``.
    """
    return parse(read_bytes(path, thing, limit=limit, advice=advice), type_, thing, advice=advice)


def parse(content: bytes, type_: type[T], thing: str, *, advice: str = ADVICE) -> T:
    """Reads JSON text into ``type_``; arguments as in ``read``.

    Raises:
        ZeusError: As ``decode`` and ``build``.
    """
    return build(decode(content, thing, advice=advice), type_, thing, advice=advice)


def read_bytes(path: str | os.PathLike, thing: str, *, limit: int = LIMIT, advice: str = ADVICE) -> bytes:
    """The content of a file.

    Raises:
        ZeusError: The file is missing, unreadable, or has more than ``limit`` bytes.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise ZeusError(f"{thing}: got {path}, which cannot be read ({reason}); expected a file. {advice}") from error
    if len(content) > limit:
        raise ZeusError(f"{thing}: got {path} of more than {limit} bytes; expected at most {limit}. {advice}")
    return content


def decode(content: bytes, thing: str, *, advice: str = ADVICE, infinite: Collection[str] = ()) -> Any:
    """JSON text as plain data: None, bool, int, float, str, list and dict.

    Args:
        content: The text.
        thing: What it is, for the message.
        advice: The last sentence of the message.
        infinite: Fields of the outermost object that may be ``Infinity`` or ``-Infinity``, which strict JSON lacks.

    Raises:
        ZeusError: The text is no UTF-8 or no JSON, is nested deeper than ``DEPTH``, repeats a key, or has a number
            that is not finite or does not fit into 64 bits.
    """
    try:
        text = content.decode("utf-8")
        _check_depth(text)
        data = json.loads(
            text, object_pairs_hook=_make_object, parse_int=_read_int, parse_float=_read_float,
            parse_constant=float if infinite else _refuse,
        )  # fmt: skip
        if infinite:
            _check_infinite(data, infinite)
        if _SURROGATE.search(text):  # half a character: such text cannot be printed, nor written to a file
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        return data
    except UnicodeError as error:
        raise ZeusError(
            f"{thing}: got text that is no UTF-8 ({getattr(error, 'reason', error)}); expected JSON. {advice}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ZeusError(f"{thing}: got text that is no strict JSON ({error}); expected JSON. {advice}") from error


def build(
    data: Any,
    type_: type[T],
    thing: str,
    *,
    advice: str = ADVICE,
    read_other: Callable[[type, Any], Any] | None = None,
) -> T:
    """Plain data as ``type_``: nothing is converted but arrays to tuples, integers to floats and keys to integers.

    Args:
        data: What ``decode`` returns.
        type_: As in ``read``.
        thing: What it is, for the message.
        advice: The last sentence of the message.
        read_other: Reads a value of a type that is no dataclass and no type of JSON, given the type and the value;
            raises ValueError or TypeError for a wrong one.

    ``__post_init__`` of a dataclass checks what the annotations cannot say, and raises ValueError or ZeusError.

    Raises:
        ZeusError: A field is missing, unknown, or has a wrong type or value.
    """
    try:
        built = msgspec.convert(data, type_, str_keys=True, dec_hook=read_other)
        _check_fields(data, type_, "")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error).replace("`", "").replace("$.", "").replace(" - at $", "")
        raise ZeusError(f"{thing}: got JSON that does not fit ({reason}); expected a {thing}. {advice}") from error
    return built


def check_format(data: Any, expected: int, thing: str, *, advice: str = ADVICE) -> None:
    """Raises ZeusError unless ``data`` is an object whose ``format`` is that of this version."""
    found = data.get("format") if isinstance(data, Mapping) else None
    if type(found) is not int or found != expected:
        raise ZeusError(f"{thing}: got format {found}; expected {expected}. Update zeus-trt, or: {advice}")


def _check_depth(text: str) -> None:
    depth = 0
    for match in _TOKEN.finditer(text):
        if match[1]:
            depth += 1
            if depth > DEPTH:
                raise ValueError(f"it is nested deeper than {DEPTH} levels")
        elif not match[0].startswith('"'):
            depth -= 1


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {key!r} is repeated")
    return made


def _read_int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"the integer {text[:20]} has more than 64 bits")
    return int(text)


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is not finite")
    return number


def _check_infinite(data: Any, names: Collection[str]) -> None:
    fields = data if isinstance(data, dict) else {"": data}
    json.dumps({name: value for name, value in fields.items() if name not in names}, allow_nan=False)
    json.dumps([value for name, value in fields.items() if name in names and value not in _INFINITE], allow_nan=False)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_find_hints = lru_cache(get_type_hints)


def _check_fields(data: Any, type_: Any, where: str) -> None:
    """Raises ValueError for a field that no dataclass of ``type_`` has: msgspec ignores those."""
    origin, parts = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and is_dataclass(type_):
        hints = _find_hints(type_)
        for name, value in data.items() if isinstance(data, Mapping) else ():
            if name not in hints:
                raise ValueError(f"unknown field {f'{where}.{name}'.lstrip('.')}")
            _check_fields(value, hints[name], f"{where}.{name}")
    elif origin in (Union, UnionType):
        for part in parts:
            _check_fields(data, part, where)
    elif origin in (tuple, list, Sequence) and isinstance(data, Sequence):
        types = parts if origin is tuple and parts[-1:] != (...,) else [parts[0]] * len(data)
        for place, (value, part) in enumerate(zip(data, types, strict=False)):
            _check_fields(value, part, f"{where}[{place}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, Mapping):
        for name, value in data.items():
            _check_fields(value, parts[1], f"{where}[{name!r}]")
