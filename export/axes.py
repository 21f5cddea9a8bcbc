"""Which axes of a denoiser's tensors move together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, count, product
from math import prod
from typing import Any

from zeus_trt.runtime.bundle.manifest import AREA

Slot = tuple[str, int | None]  # input and axis; no axis: the value of an integer


@dataclass(frozen=True)
class Symbol:
    """A size that varies.

    Args:
        name: Its name, after the setting that moves it; ``tokens`` if several do.
        sizes: Its observed sizes, of the base run first.
        factors: Symbols that it is a product of; empty for a plain size.
        scale: What that product is multiplied with.
        setting: The setting that moves it, ``height x width`` if their product does; empty if no setting does.
        unit, offset: The setting is ``unit * size + offset``.
    """

    name: str
    sizes: tuple[int, ...]
    factors: tuple[str, ...] = ()
    scale: Fraction = Fraction(1)
    setting: str = ""
    unit: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)


def find_symbols(
    sizes: Mapping[Slot, Sequence[int]], settings: Sequence[str]
) -> tuple[tuple[Symbol, ...], dict[Slot, str]]:
    """Names the axes that moved while one setting at a time was varied.

    Axes share a symbol exactly if their sizes over all runs are equal. A symbol that several settings move is
    looked for among the products of those that one setting moves.

    Args:
        sizes: Observed sizes of every axis: of the base run, then of one run per setting.
        settings: What was varied in each run but the first.

    Returns:
        The symbols, factors before products, and the symbol of every axis that moved.
    """
    moving = dict.fromkeys(tuple(vector) for vector in sizes.values() if len(set(vector)) > 1)
    vectors = sorted(moving, key=lambda vector: len(_moved(vector)))
    symbols: dict[tuple[int, ...], Symbol] = {}
    for vector in vectors:
        moved = [settings[run] for run in _moved(vector)]
        name = _choose_name(moved[0] if len(moved) == 1 else "tokens", symbols.values())
        symbols[vector] = _explain(name, vector, [s for s in symbols.values() if not s.factors])
    slots = {slot: symbols[tuple(vector)].name for slot, vector in sizes.items() if tuple(vector) in symbols}
    return tuple(symbols.values()), slots


def find_unit(symbol: Symbol, base: Mapping[str, Any], varied: Mapping[str, Any]) -> Symbol:
    """The symbol with the setting that moves it, read off the runs of ``find_symbols``: a line through two of them.

    Args:
        symbol: What was found.
        base: Settings of the base run.
        varied: The one setting that differs in each of the others, in their order.
    """
    names = [list(varied)[run] for run in _moved(symbol.sizes)]
    values: list[tuple[Any, Any]] = [(base.get(name), varied[name]) for name in names]
    if not all(type(value) is int for pair in values for value in pair):
        return symbol
    sizes = [symbol.sizes[1 + list(varied).index(name)] for name in names]
    if len(names) == 1:
        unit = Fraction(values[0][1] - values[0][0], sizes[0] - symbol.sizes[0])
        return replace(symbol, setting=names[0], unit=unit, offset=values[0][0] - unit * symbol.sizes[0])
    if {*names} == {"height", "width"}:
        area = base["height"] * base["width"]
        units = {Fraction(area // old * new, size) for (old, new), size in zip(values, sizes, strict=True)}
        if units == {Fraction(area, symbol.sizes[0])}:
            return replace(symbol, setting=AREA, unit=units.pop())
    return symbol


def _moved(vector: Sequence[int]) -> list[int]:
    """The varied runs in which the size was another than in the base run."""
    return [run for run, size in enumerate(vector[1:]) if size != vector[0]]


def _explain(name: str, vector: tuple[int, ...], known: list[Symbol]) -> Symbol:
    """The symbol as a product of known ones, one per setting that moves it, if there is one."""
    for factors in _combine(vector, known):
        products = [prod(sizes) for sizes in zip(*(symbol.sizes for symbol in factors), strict=True)]
        ratios = {Fraction(size, whole) for size, whole in zip(vector, products, strict=True)}
        if len(ratios) == 1:
            return Symbol(name, vector, tuple(symbol.name for symbol in factors), ratios.pop())
    return Symbol(name, vector)


def _combine(vector: tuple[int, ...], known: list[Symbol]) -> Iterator[tuple[Symbol, ...]]:
    return product(*([symbol for symbol in known if _moved(symbol.sizes) == [run]] for run in _moved(vector)))


def _choose_name(wanted: str, taken: Iterable[Symbol]) -> str:
    names = {symbol.name for symbol in taken}
    numbered = (f"{wanted}_{number}" for number in count(2))
    return next(name for name in chain([wanted], numbered) if name not in names)
