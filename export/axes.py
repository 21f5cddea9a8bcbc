"""Which axes of a denoiser's tensors move together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, count, product
from math import prod
from typing import Any

from zeus_trt.runtime.bundle.tensor_spec import AREA, SymbolSpec

Slot = tuple[str, int | None]  # input and axis; no axis: the value of an integer


Moved = tuple[int, ...]
"""The sizes of an axis over all runs, that of the base run first."""


def find_symbols(
    sizes: Mapping[Slot, Sequence[int]], settings: Sequence[str]
) -> tuple[dict[Moved, SymbolSpec], dict[Slot, str]]:
    """Names the axes that moved while one setting at a time was varied.

    Axes share a symbol exactly if their sizes over all runs are equal. A symbol that several settings move is
    looked for among the products of those that one setting moves.

    Args:
        sizes: Observed sizes of every axis: of the base run, then of one run per setting.
        settings: What was varied in each run but the first.

    Returns:
        The symbols by their sizes, factors before products, and the symbol of every axis that moved.
    """
    moving = dict.fromkeys(tuple(vector) for vector in sizes.values() if len(set(vector)) > 1)
    vectors = sorted(moving, key=lambda vector: len(_moved(vector)))
    symbols: dict[Moved, SymbolSpec] = {}
    for vector in vectors:
        moved = [settings[run] for run in _moved(vector)]
        name = _choose_name(moved[0] if len(moved) == 1 else "tokens", symbols.values())
        symbols[vector] = _explain(name, vector, symbols)
    slots = {slot: symbols[tuple(vector)].name for slot, vector in sizes.items() if tuple(vector) in symbols}
    return symbols, slots


def find_unit(symbol: SymbolSpec, sizes: Moved, base: Mapping[str, Any], varied: Mapping[str, Any]) -> SymbolSpec:
    """The symbol with the setting that moves it, read off the runs of ``find_symbols``: a line through two of them.

    Args:
        symbol: One of those that were found.
        sizes: Its sizes.
        base: Settings of the base run.
        varied: The one setting that differs in each of the others, in their order.
    """
    names = [list(varied)[run] for run in _moved(sizes)]
    values: list[tuple[Any, Any]] = [(base.get(name), varied[name]) for name in names]
    if not all(type(value) is int for pair in values for value in pair):
        return symbol
    others = [sizes[1 + list(varied).index(name)] for name in names]
    if len(names) == 1:
        unit = Fraction(values[0][1] - values[0][0], others[0] - sizes[0])
        if unit < 0:  # such as the shorter side of a picture that is scaled until its longer side fits
            return symbol
        return replace(symbol, setting=names[0], unit=str(unit), offset=str(values[0][0] - unit * sizes[0]))
    if {*names} == {"height", "width"}:
        area = base["height"] * base["width"]
        units = {Fraction(area // old * new, size) for (old, new), size in zip(values, others, strict=True)}
        if units == {Fraction(area, sizes[0])}:
            return replace(symbol, setting=AREA, unit=str(units.pop()))
    return symbol


def _moved(vector: Sequence[int]) -> list[int]:
    """The varied runs in which the size was another than in the base run."""
    return [run for run, size in enumerate(vector[1:]) if size != vector[0]]


def _explain(name: str, vector: Moved, known: Mapping[Moved, SymbolSpec]) -> SymbolSpec:
    """The symbol as a product of known ones, one per setting that moves it, if there is one."""
    observed = tuple(sorted({*vector}))
    for factors in _combine(vector, [sizes for sizes, symbol in known.items() if not symbol.factors]):
        products = [prod(sizes) for sizes in zip(*factors, strict=True)]
        ratios = {Fraction(size, whole) for size, whole in zip(vector, products, strict=True)}
        if len(ratios) == 1:
            names = tuple(known[sizes].name for sizes in factors)
            return SymbolSpec(name, observed, factors=names, scale=str(ratios.pop()))
    return SymbolSpec(name, observed)


def _combine(vector: Moved, known: list[Moved]) -> Iterator[tuple[Moved, ...]]:
    return product(*([sizes for sizes in known if _moved(sizes) == [run]] for run in _moved(vector)))


def _choose_name(wanted: str, taken: Iterable[SymbolSpec]) -> str:
    names = {symbol.name for symbol in taken}
    numbered = (f"{wanted}_{number}" for number in count(2))
    return next(name for name in chain([wanted], numbered) if name not in names)
