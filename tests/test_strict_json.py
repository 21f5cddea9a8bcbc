"""One reader for every JSON file: whatever is in it, the answer is data of the asked type or one sentence."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, escape


@dataclass(frozen=True)
class Inner:
    size: float
    axes: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner | None = None
    parts: tuple[Inner, ...] = ()
    pair: tuple[Inner, int] | None = None
    by_name: dict[str, Inner] = field(default_factory=dict)
    rows: Mapping[int, float] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")


def read(text: str | bytes) -> Outer:
    return strict_json.parse(text.encode() if isinstance(text, str) else text, Outer, "thing")


def test_a_file_becomes_frozen_data():
    text = '{"count": 1, "inner": {"size": 2, "axes": ["batch", 3]}, "rows": {"4": 0.5}, "free": {"a": [null, true]}}'
    inner = Inner(2.0, ("batch", 3))
    assert read(text) == Outer(1, inner, rows={4: 0.5}, free={"a": [None, True]})
    assert type(read(text).inner.size) is float


BRACKETS = 200_000
BAD = {
    "no text": "",
    "cut off": '{"count": 1',
    "another kind": "[1]",
    "nothing": "null",
    "text after it": '{"count": 1} {}',
    "missing field": "{}",
    "unknown field": '{"count": 1, "other": 2}',
    "unknown field inside": '{"count": 1, "inner": {"size": 1, "other": 2}}',
    "unknown field in a list": '{"count": 1, "parts": [{"size": 1}, {"size": 1, "other": 2}]}',
    "unknown field in a pair": '{"count": 1, "pair": [{"size": 1, "other": 2}, 1]}',
    "unknown field in a table": '{"count": 1, "by_name": {"a": {"size": 1, "other": 2}}}',
    "repeated key": '{"count": 1, "count": 2}',
    "repeated key inside": '{"count": 1, "free": {"a": [{"b": 1, "b": 1}]}}',
    "text for a number": '{"count": "1"}',
    "float for an integer": '{"count": 1.0}',
    "bool for an integer": '{"count": true}',
    "bool for a float": '{"count": 1, "inner": {"size": true}}',
    "float for an axis": '{"count": 1, "inner": {"size": 1, "axes": [1.5]}}',
    "wrong value": '{"count": -1}',
    "key that is no integer": '{"count": 1, "rows": {"a": 1}}',
    "infinity": '{"count": 1, "inner": {"size": Infinity}}',
    "minus infinity": '{"count": 1, "free": {"a": -Infinity}}',
    "nan": '{"count": 1, "free": {"a": NaN}}',
    "1e400": '{"count": 1, "free": {"a": -1e400}}',
    "400 digits": '{"count": ' + "9" * 400 + "}",
    "400 digits, as a float": '{"count": 1, "inner": {"size": ' + "9" * 400 + "}}",
    "400 digits, anywhere": '{"count": 1, "free": {"a": ' + "9" * 400 + "}}",
    "65 bits": '{"count": 18446744073709551616}',
    "deep lists": '{"count": 1, "free": {"a": ' + "[" * BRACKETS + "]" * BRACKETS + "}}",
    "deep lists that never close": "[" * BRACKETS,
    "deep objects": '{"a":' * BRACKETS + "1" + "}" * BRACKETS,
    "no UTF-8": b'{"count": 1, "free": {"a": "\xff"}}',
    "half a character": '{"count": 1, "free": {"a": "\\ud800"}}',
    "escape sequence": '{"count": 1, "\\u001b[31m\\n": 2}',
    "text that turns round": '{"count": 1, "\\u202ereversed": 2}',
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence(name):
    with pytest.raises(ZeusError, match=r"thing: got .*; expected .*") as caught:
        read(BAD[name])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_depth_does_not_hang_on_the_interpreter():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)  # a service may do so: then deep recursion would end the process
    try:
        with pytest.raises(ZeusError, match="deeper than 64"):
            read("[" * BRACKETS)
    finally:
        sys.setrecursionlimit(limit)


def test_brackets_in_text_are_not_depth():
    text = '["' + "[" * 500 + '", "\\"[' + "[" * 500 + '\\\\"]'
    assert strict_json.parse(text.encode(), list[str], "thing") == ["[" * 500, '"[' + "[" * 500 + "\\"]


def test_a_file_is_read_up_to_a_limit(tmp_path):
    file = tmp_path / "thing.json"
    file.write_text('{"count": 1}')
    assert strict_json.read(file, Outer, "thing", limit=12) == Outer(1)
    for path, said in ((file, "more than 11 bytes"), (tmp_path, "directory"), (tmp_path / "\0", "null byte")):
        with pytest.raises(ZeusError, match=said):
            strict_json.read(path, Outer, "thing", limit=11)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2Jb", "a\u202eb", "a\u2028b", "a\x9bb", "\udc80", "a\r", "\x7f"])
def test_no_message_has_a_control_character(text):
    assert str(ZeusError(f"thing: got {text}.")).isprintable()
    assert escape("größer 画 5 °C") == "größer 画 5 °C"


def test_a_long_message_loses_its_middle():
    message = str(ZeusError("thing: got " + "x" * 10**6 + ". Choose another."))
    assert len(message) < 4000
    assert message.startswith("thing: got x")
    assert message.endswith("Choose another.")
