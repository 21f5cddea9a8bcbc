"""Mutations of files, as a hypothesis strategy: of bytes, and of what JSON holds."""

import json
from typing import Any

from hypothesis import strategies as st

DEEP = 100_000
HOLE = "\ue000hole\ue000"  # is replaced in the text: what json.dumps cannot write
RAW = ("NaN", "Infinity", "-Infinity", "9" * 400, "1e999", "[" * DEEP + "]" * DEEP, '{"a":' * 900 + "1" + "}" * 900)
JUNK = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**18, 1.5, 1e308, -1e-308, "", "x", "1", "F", "\x1b[2J\n", "\0",
    "\u202egnp", "\ud800", "../../x", "/etc/passwd", "x" * 5000, [], {}, [[]], [None], {"a": 1}, [1] * 2000, "float32",
)  # fmt: skip
TEXTS = (b"\0", b"\xff", b"\n", b"\x1b[31m", b"{", b"}", b"[", b'"', b",", b"-", b"NaN", b"../", b"0" * 300)


@st.composite
def mutate(draw: Any, content: bytes) -> bytes:
    """``content`` with one to three faults in it."""
    for _ in range(draw(st.integers(1, 3))):
        data = _parse(content)
        content = draw(_mutate_bytes(content) if data is None or draw(st.integers(0, 2)) == 0 else _mutate_json(data))
    return content


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


@st.composite
def _mutate_bytes(draw: Any, content: bytes) -> bytes:
    start = draw(st.integers(0, len(content)))
    end = min(len(content), start + draw(st.sampled_from((0, 1, 2, 8, 100))))
    kind = draw(st.sampled_from(("flip", "cut", "remove", "repeat", "insert")))
    if kind == "flip":
        return (
            content[:start]
            + bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in content[start:end])
            + content[end:]
        )
    if kind == "cut":
        return content[:start]
    piece = {"remove": b"", "repeat": content[start:end] * 3, "insert": draw(st.sampled_from(TEXTS))}[kind]
    return content[:start] + piece + content[end:]


@st.composite
def _mutate_json(draw: Any, data: Any) -> bytes:
    data = json.loads(json.dumps(data))
    places = list(_list_places(data))
    raw = draw(st.sampled_from(RAW))
    if not places:
        return raw.encode()
    holder, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(("junk", "junk", "raw", "remove", "swap", "rename", "add")))
    if kind == "junk":
        holder[key] = draw(st.sampled_from(JUNK))
    elif kind == "raw":
        holder[key] = HOLE
    elif kind == "remove":
        del holder[key]
    elif kind == "swap":
        other, place = draw(st.sampled_from(places))
        holder[key], other[place] = json.loads(json.dumps([other[place], holder[key]]))
    elif isinstance(holder, dict):
        name = draw(st.sampled_from([value for value in JUNK if isinstance(value, str)]))
        holder[name] = holder.pop(key) if kind == "rename" else draw(st.sampled_from(JUNK))
    else:
        holder.append(draw(st.sampled_from(JUNK)))
    return json.dumps(data).replace(json.dumps(HOLE), raw).encode()


def _list_places(data: Any) -> Any:
    """Every (holder, key) of a tree; not more than twenty of a list."""
    keys = list(data) if isinstance(data, dict) else range(min(len(data), 20)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _list_places(data[key])
