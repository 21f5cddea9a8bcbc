"""Rules that verification shows to be needless."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
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
_SIDES = ("height", "width")
Verify = Callable[[Sequence[Case]], tuple[Verification, ...]]


def relax(
    rules: SizeRules, captured: Capture, pipeline: Any, settings: Settings, verify: Verify
) -> tuple[SizeRules, tuple[Verification, ...]]:
    """Drops rules against single sizes where the graph agrees with the eager model at each of these sizes.

    Torch takes a size that moves for 2 or more, and models ask for one size to read a table that they compute at any
    other. Both are no limit if the graph gives the same there.

    Args:
        rules: What tracing found.
        captured: The call that was exported.
        pipeline, settings: To make calls at these sizes.
        verify: Compares the graph with the eager model; raises ZeusError where they differ.

    Returns:
        The rules that are left, and the comparisons that showed the others to be needless.
    """
    records: tuple[Verification, ...] = ()
    for wider, symbol, sizes in [*_list_relations(rules), *_list_ones(rules)]:
        cases = [_find_case(wider, captured, pipeline, settings, change)
                 for size in sizes for change in _list_changes(symbol, size, settings)]  # fmt: skip
        present = [case for case in cases if case is not None]
        if not cases or len(present) < len(cases):
            continue
        try:
            records += verify(present)
        except ZeusError:
            continue
        rules = _merge(rules, wider)
    return rules, records


def _list_relations(rules: SizeRules) -> Iterator[tuple[SizeRules, SymbolSpec, tuple[int, ...]]]:
    """The rules without one relation that rules out a few sizes, and these sizes."""
    for relation in rules.relations:
        symbols = [symbol for symbol in rules.symbols if {symbol.name} == relation.names]
        if symbols and (sizes := _list_excluded(relation, symbols[0])):
            left = tuple(other for other in rules.relations if other != relation)
            yield replace(rules, relations=left), symbols[0], sizes


def _list_excluded(relation: Relation, symbol: SymbolSpec) -> tuple[int, ...]:
    """The sizes that only the relation rules out; none if they are many."""
    last = symbol.maximum or 4 * max(symbol.observed)
    first = -(-symbol.minimum // symbol.multiple_of) * symbol.multiple_of
    sizes = [size for size in range(first, last + 1, symbol.multiple_of) if not relation.holds({symbol.name: size})]
    return tuple(sizes) if len(sizes) <= _MOST_SIZES else ()


def _list_ones(rules: SizeRules) -> Iterator[tuple[SizeRules, SymbolSpec, tuple[int, ...]]]:
    """The rules with the size 1 of one symbol, such as a single frame."""
    for symbol in rules.symbols:
        if symbol.minimum == 2 and symbol.multiple_of == 1 and symbol.setting and symbol.setting not in _SIDES:
            others = [replace(other, minimum=1) if other == symbol else other for other in rules.symbols]
            yield replace(rules, symbols=tuple(others)), symbol, (1,)


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
