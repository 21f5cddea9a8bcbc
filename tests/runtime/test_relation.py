"""Relations between sizes: when they hold, how they read, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import SizeRules, check_sizes
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec

KINDS = {
    "h > w": (("h", "w", ">"), lambda h, w: h > w),
    "3 * h <= 2 * w": ((3, "h", "*", 2, "w", "*", "<="), lambda h, w: 3 * h <= 2 * w),
    "(h // 2) * (w // 2) > 64": (("h", 2, "//", "w", 2, "//", "*", 64, ">"), lambda h, w: (h // 2) * (w // 2) > 64),
    "(h * w) % 2 == 0": (("h", "w", "*", 2, "%", 0, "=="), lambda h, w: (h * w) % 2 == 0),
    "h / w > 1.5": (("h", "w", "/", 1.5, ">"), lambda h, w: h / w > 1.5),
    "max(h, w) - min(h, w) != 3": (("h", "w", "max()", "h", "w", "min()", "-", 3, "!="), lambda h, w: abs(h - w) != 3),
    "h - (w - 5) < 9": (("h", "w", 5, "-", "-", 9, "<"), lambda h, w: h - (w - 5) < 9),
    "not(h == w) and sqrt(h) < 6": (
        ("h", "w", "==", "not", "h", "sqrt()", 6, "<", "and"), lambda h, w: h != w and h**0.5 < 6
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", KINDS)
@given(st.integers(1, 50), st.integers(1, 50))
def test_it_holds_where_python_says_so(text, h, w):
    terms, function = KINDS[text]
    relation = Relation(terms)
    assert relation.holds({"h": h, "w": w}) == function(h, w)
    assert str(relation) == text
    assert relation.names <= {"h", "w"}


@pytest.mark.parametrize(
    "terms",
    [
        (), ("h",), ("h", "w"), ("h", ">"), ("h", "w", ">", 3), ("h", "w", ">", "not", "not()", "+"), (True,),
        ("h", float("nan"), ">"), ("h", None, ">"), ("h", ["w"], ">"), ("h", "w", "+"), ("h",) * 2000,
        ("h", "w", ">", 1, "+", 1, "=="), ("h", "w", "and"),
    ],
)  # fmt: skip
def test_what_is_no_relation_is_refused(terms):
    with pytest.raises(ZeusError, match=r"relation: got .*; expected a comparison"):
        Relation(terms)


@pytest.mark.parametrize(
    "terms", [("h", "h", "h", "-", "/", 1, "<"), ("h", 1000, "**", 1, ">"), (0, "h", "-", "sqrt()", 1, "<")]
)
def test_what_has_no_value_does_not_hold(terms):
    assert not Relation(terms).holds({"h": 24})


def test_a_relation_of_other_sizes_is_refused():
    with pytest.raises(ZeusError, match="of depth; expected sizes that the inputs have, height"):
        SizeRules({"x": ("height",)}, {}, (SymbolSpec("height", (8,)),), (Relation(("depth", 3, ">")),))


def test_the_message_speaks_of_pixels_and_names_the_line():
    symbols = [SymbolSpec(name, (8,), setting=name, unit="8") for name in ("height", "width")]
    relations = [Relation(("height", "width", ">"), "model.py:23")]
    check_sizes(symbols, relations, {"height": 3})  # the other is not known yet
    check_sizes(symbols, relations, {"height": 3, "width": 2})
    with pytest.raises(ZeusError) as caught:
        check_sizes(symbols, relations, {"height": 16, "width": 24})
    assert "height 16 (128 pixels), width 24 (192 pixels); expected height > width" in str(caught.value)
    assert "model.py:23" in str(caught.value)


def test_limits_and_products():
    symbols = (
        SymbolSpec("height", (8,), multiple_of=2, maximum=64, minimum=4),
        SymbolSpec("width", (8,)),
        SymbolSpec("tokens", (16,), factors=("height", "width"), scale="1/4"),
    )
    for height in (2, 5, 66):
        with pytest.raises(ZeusError, match="expected a multiple of 2, at least 4, up to 64"):
            check_sizes(symbols, (), {"height": height})
    check_sizes(symbols, (), {"height": 8, "width": 6, "tokens": 12})
    with pytest.raises(ZeusError, match="tokens: got 13; expected 12, 1/4 x height x width"):
        check_sizes(symbols, (), {"height": 8, "width": 6, "tokens": 13})


def test_rules_are_read_as_they_were_written():
    rules = SizeRules(
        {"x": ("batch", 4, "height"), "frames": ()}, {"frames": "frames"},
        (SymbolSpec("batch", (2,)), SymbolSpec("height", (8,), 2), SymbolSpec("frames", (3,))),
        (Relation(("height", "frames", ">"), "model.py:3"),),
    )  # fmt: skip
    assert SizeRules.from_json(rules.to_json()) == rules


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"axes": 3}', "[" * 100_000, '{"axes": {"x": 3}, "values": {}}'])
def test_rules_that_are_none_are_refused(text):
    with pytest.raises(ZeusError, match="sizes: got rules in the graph that do not fit"):
        SizeRules.from_json(text)
