"""Rules that verification shows to be needless."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import Case, list_cases
from zeus_trt.export.capture import Capture
from zeus_trt.export.runs import Settings
from zeus_trt.runtime.bundle.manifest import Verification
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec

_MOST_SIZES = 4  # that a relation may rule out to be tried at each of them
_MOST_NEAR, _LEAST_NEAR = 6, 2  # settings that a relation against many sizes is tried at, and that must run
_MOST_SIDES = 40  # of each setting, to find these
_SIDES = ("height", "width")
_Wider = tuple[SizeRules, Sequence[Mapping[str, Any]], int]
"""Wider rules, the settings that show whether they hold, and how many of these must run."""
Verify = Callable[[Sequence[Case]], tuple[Verification, ...]]


def relax(
    rules: SizeRules, captured: Capture, pipeline: Any, settings: Settings, verify: Verify
) -> tuple[SizeRules, tuple[Verification, ...]]:
    """Drops rules against special sizes where the graph agrees with the eager model at these sizes.

    Torch takes a size that moves for 2 or more, and models ask for one size to read a table that they compute at any
    other: each such size is verified. Models also skip what does nothing at some sizes, such as padding of no tokens:
    of these some are verified, the nearest to the base setting. None is a limit if the graph gives the same there.

    Args:
        rules: What tracing found.
        captured: The call that was exported.
        pipeline, settings: To make calls at these sizes.
        verify: Compares the graph with the eager model; raises ZeusError where they differ.

    Returns:
        The rules that are left, and the comparisons that showed the others to be needless.
    """
    records: tuple[Verification, ...] = ()
    for wider, changes, least in [*_list_relations(rules, settings), *_list_ones(rules, settings)]:
        found = (_find_case(wider, captured, pipeline, settings, change) for change in changes)
        present = [case for case in found if case is not None]
        if len(present) < max(least, 1):
            continue
        try:
            records += verify(present)
        except ZeusError:
            continue
        rules = _merge(rules, wider)
    return rules, records


def leave_special(captured: Capture, rules: SizeRules, pipeline: Any, settings: Settings) -> Capture | None:
    """The same call at a near size that is not special, where tracing took a branch for special sizes.

    Code that pads to a multiple of 32 tokens skips it at such a multiple: a graph of that branch has no padding. A
    graph with padding may serve both, which ``relax`` finds out.

    Args:
        captured: The call that was traced.
        rules: What tracing found.
        pipeline, settings: To make the other call.

    Returns:
        None where no relation of the rules asks for a remainder of 0, or no near size is another.
    """
    for relation in rules.relations:
        if is_special(relation):
            left = replace(rules, relations=tuple(other for other in rules.relations if other != relation))
            for change in islice(_list_near(relation, rules.symbols, settings), _MOST_NEAR):
                if case := _find_case(left, captured, pipeline, settings, change):
                    return replace(captured, arguments=captured.rows.flatten(case.arguments, case.row or 0))
    return None


def is_special(relation: Relation) -> bool:
    """Whether it asks for a remainder of 0: ``a % b == 0``."""
    return relation.terms[-3:] == ("%", 0, "==")


def _list_relations(rules: SizeRules, settings: Settings) -> Iterator[_Wider]:
    """The rules without one relation, where it rules out a few sizes, or those at which something is zero."""
    for relation in rules.relations:
        wider = replace(rules, relations=tuple(other for other in rules.relations if other != relation))
        symbols = [symbol for symbol in rules.symbols if {symbol.name} == relation.names]
        sizes = _list_excluded(relation, symbols[0]) if symbols else ()
        if 0 < len(sizes) <= _MOST_SIZES:
            changes = [change for size in sizes for change in _list_changes(symbols[0], size, settings)]
            yield wider, changes, len(changes)
        elif relation.terms[-3:] == ("%", 0, ">") or relation.terms[-1] == "!=":
            yield wider, [*islice(_list_near(relation, rules.symbols, settings), _MOST_NEAR)], _LEAST_NEAR


def _list_excluded(relation: Relation, symbol: SymbolSpec) -> list[int]:
    """The sizes that the relation rules out."""
    return [size for size in _list_sizes(symbol) if not relation.holds({symbol.name: size})]


def _list_sizes(symbol: SymbolSpec) -> range:
    """The sizes of a symbol, up to four times the largest that was seen."""
    first = -(-symbol.minimum // symbol.multiple_of) * symbol.multiple_of
    return range(first, (symbol.maximum or 4 * max(symbol.observed)) + 1, symbol.multiple_of)


def _list_near(relation: Relation, symbols: Iterable[SymbolSpec], settings: Settings) -> Iterator[dict[str, int]]:
    """Settings at sizes that a relation rules out, the nearest to the base setting first."""
    moved = [symbol for symbol in symbols if symbol.name in relation.names]
    if not all(type(settings.base.get(symbol.setting)) is int for symbol in moved):
        return
    values = []  # of each setting: how far from its base it is, and with which size
    for symbol in moved:
        base, unit, offset = settings.base[symbol.setting], Fraction(symbol.unit), Fraction(symbol.offset)
        sides = ((unit * size + offset, size) for size in _list_sizes(symbol))
        values.append(sorted((abs(value - base), value, size) for value, size in sides if value.denominator == 1))
    for choice in sorted(
        product(*(each[:_MOST_SIDES] for each in values)), key=lambda each: sum(far for far, *_ in each)
    ):
        if not relation.holds({symbol.name: size for symbol, (*_, size) in zip(moved, choice, strict=True)}):
            yield {symbol.setting: int(value) for symbol, (_, value, _) in zip(moved, choice, strict=True)}


def _list_ones(rules: SizeRules, settings: Settings) -> Iterator[_Wider]:
    """The rules with the size 1 of one symbol, such as a single frame."""
    for symbol in rules.symbols:
        if symbol.minimum == 2 and symbol.multiple_of == 1 and symbol.setting and symbol.setting not in _SIDES:
            others = [replace(other, minimum=1) if other == symbol else other for other in rules.symbols]
            changes = [*_list_changes(symbol, 1, settings)]
            yield replace(rules, symbols=tuple(others)), changes, len(changes)


def _list_changes(symbol: SymbolSpec, size: int, settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Settings at which a symbol has that size: of a side also the square."""
    value = Fraction(symbol.unit) * size + Fraction(symbol.offset)
    if symbol.setting not in settings.base or value.denominator != 1:
        return
    yield {symbol.setting: int(value)}
    if symbol.setting in _SIDES:
        yield dict.fromkeys(_SIDES, int(value))


def _find_case(
    rules: SizeRules, captured: Capture, pipeline: Any, settings: Settings, change: Mapping[str, Any]
) -> Case | None:
    """The call at a changed setting; None where the pipeline refuses it or other rules do."""
    try:
        case = next(list_cases(captured, pipeline, settings, [change]))
    except ZeusError:
        return None
    return case if rules.allow(case.inputs) else None


def _merge(rules: SizeRules, wider: SizeRules) -> SizeRules:
    """The rules that are in both."""
    least = {symbol.name: symbol.minimum for symbol in wider.symbols}
    symbols = tuple(replace(symbol, minimum=min(symbol.minimum, least[symbol.name])) for symbol in rules.symbols)
    relations = tuple(relation for relation in rules.relations if relation in wider.relations)
    return replace(rules, symbols=symbols, relations=relations)
