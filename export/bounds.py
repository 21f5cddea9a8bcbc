"""What conditions on sizes leave of the sizes: multiples, smallest and largest ones, and relations."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, product
from math import ceil, floor, lcm, prod
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from zeus_trt.export.sympy_relation import to_relation

_MOST_TRIED = 16384  # values of one size, or of several together, that a condition is tried at
_SMALLEST = 2  # torch takes a size that moves for 2 or more


@dataclass
class Bounds:
    """Multiple, smallest and largest size of each symbol, as they are found.

    ``multiples``, ``smallest`` and ``largest`` are by symbol; a symbol that has no entry is free.
    """

    multiples: dict[sympy.Symbol, int] = field(default_factory=dict)
    smallest: dict[sympy.Symbol, int] = field(default_factory=dict)
    largest: dict[sympy.Symbol, int] = field(default_factory=dict)

    def absorb(self, condition: sympy.Basic) -> bool:
        """Narrows the bounds until they imply the condition; False if no bounds are as wide as the condition."""
        if self.implies(condition):
            return True
        if self._raise_multiples(condition):
            return True
        if len(condition.free_symbols) != 1:
            return False
        try:
            return self._solve(condition) or self._find_threshold(condition)
        except ZeroDivisionError:  # it has no value at any size inside the bounds
            return False

    def implies(self, condition: sympy.Basic) -> bool:
        """Whether the condition is true of all sizes inside the bounds."""
        try:
            return self._prove(self._count_multiples(condition)) or self._try_all(condition)
        except ZeroDivisionError:  # it has no value at any of them
            return False

    def list_values(self, symbol: sympy.Symbol) -> range:
        """The sizes inside the bounds, the first of them if there is no largest."""
        step = self.multiples.get(symbol, 1)
        first = ceil(self.smallest.get(symbol, _SMALLEST) / step) * step
        last = self.largest.get(symbol, first + step * _MOST_TRIED)
        return range(first, last + 1, step)

    def _count_multiples(self, condition: sympy.Basic) -> Any:
        """The condition on the number of multiples that each size is."""
        return condition.xreplace({symbol: step * symbol for symbol, step in self.multiples.items()})

    def _ranges(self) -> dict[sympy.Symbol, ValueRanges]:
        ranges = {}
        for symbol in {*self.multiples, *self.smallest, *self.largest}:
            step = self.multiples.get(symbol, 1)
            low = ceil(self.smallest.get(symbol, _SMALLEST) / step)
            high = self.largest[symbol] // step if symbol in self.largest else int_oo
            ranges[symbol] = ValueRanges(sympy.Integer(low), high if high is int_oo else sympy.Integer(high))
        return ranges

    def _prove(self, condition: Any) -> bool:
        if condition in (sympy.true, sympy.false):
            return condition is sympy.true
        if isinstance(condition, sympy.And):
            return all(self._prove(part) for part in condition.args)
        if isinstance(condition, sympy.Or):
            return any(self._prove(part) for part in condition.args)
        if not isinstance(condition, sympy.core.relational.Relational):
            return False
        left, right = condition.args
        if isinstance(left, Mod | PythonMod) and right == 0 and sympy.cancel(left.args[0] / left.args[1]).is_Integer:
            return isinstance(condition, sympy.Eq)
        if isinstance(left, Mod | PythonMod) and self._is_remainder(*left.args):
            left = left.args[0]
        difference = left - right
        test = {
            sympy.Ne: lambda low, high: low > 0 or high < 0, sympy.Eq: lambda low, high: low == high == 0,
            sympy.StrictLessThan: lambda low, high: high < 0, sympy.LessThan: lambda low, high: high <= 0,
            sympy.StrictGreaterThan: lambda low, high: low > 0, sympy.GreaterThan: lambda low, high: low >= 0,
        }[type(condition)]  # fmt: skip
        return any(bool(test(bound.lower, bound.upper)) for bound in self._bound(difference))

    def _is_remainder(self, number: sympy.Basic, divisor: sympy.Basic) -> bool:
        """Whether a number is from 0 up to its divisor, and so its own remainder."""
        return self._is_positive(divisor - number) and self._is_positive(number + 1)

    def _is_positive(self, expression: sympy.Basic) -> bool:
        return any(bound.lower > 0 for bound in self._bound(expression))

    def _bound(self, expression: sympy.Basic) -> Iterator[ValueRanges]:
        """Where an expression can be; each way to write it has other bounds."""
        ranges = {symbol: bounds for symbol, bounds in self._ranges().items() if symbol in expression.free_symbols}
        if expression.free_symbols - ranges.keys():
            return
        for write in (lambda same: same, sympy.expand, sympy.factor):
            try:
                yield bound_sympy(write(expression), ranges)
            except Exception:  # sympy and torch raise many kinds for what they have no bounds of
                continue

    def _try_all(self, condition: sympy.Basic) -> bool:
        """Whether the condition is true of each of the sizes, if they are few enough to be tried."""
        symbols = sorted(condition.free_symbols, key=str)
        if not symbols or not all(symbol in self.largest for symbol in symbols):
            return False
        values = [self.list_values(symbol) for symbol in symbols]
        if prod(map(len, values)) > _MOST_TRIED:
            return False
        return all(_is_true(condition, dict(zip(symbols, sizes, strict=True))) for sizes in product(*values))

    def _raise_multiples(self, condition: sympy.Basic) -> bool:
        """``height % 2 == 0``: multiples that make the condition true, if nothing else does."""
        steps = _list_divisors(condition)
        if not steps:
            return False
        wider = {symbol: lcm(step, self.multiples.get(symbol, 1)) for symbol, step in steps.items()}
        raised = Bounds({**self.multiples, **wider}, self.smallest, self.largest)
        if not raised.implies(condition):
            return False
        if self._holds_beside(condition, wider):
            return False
        self.multiples.update(wider)
        return True

    def _holds_beside(self, condition: sympy.Basic, steps: Mapping[sympy.Symbol, int]) -> bool:
        """Whether the condition is true of sizes that are no multiples of ``steps``: each alone, or all of them."""
        tried = [[size for size in islice(self.list_values(symbol), 4 * step) if size % step]
                 for symbol, step in steps.items()]  # fmt: skip
        free = condition.free_symbols - steps.keys()
        base = {**{symbol: step * 6 for symbol, step in self.multiples.items()}, **dict.fromkeys(free, 6)}
        base |= {symbol: step * 6 for symbol, step in steps.items()}
        alone = ({symbol: size} for symbol, sizes in zip(steps, tried, strict=True) for size in sizes)
        together = (dict(zip(steps, sizes, strict=True)) for sizes in islice(product(*tried), _MOST_TRIED))
        return any(_is_true(condition, base | sizes) for sizes in chain(alone, together))

    def _solve(self, condition: Any) -> bool:
        """``height <= 64``: one size, to the first power."""
        (symbol,) = condition.free_symbols
        step = self.multiples.get(symbol, 1)
        if not isinstance(condition, sympy.core.relational.Relational):
            return False
        line = sympy.expand(self._count_multiples(condition.lhs - condition.rhs))
        slope, rest = line.coeff(symbol, 1), line.coeff(symbol, 0)
        if not (
            slope.is_Rational and rest.is_Rational and slope != 0 and sympy.expand(slope * symbol + rest - line) == 0
        ):
            return False
        edge = sympy.Rational(-rest, slope)
        values = self.list_values(symbol)
        if isinstance(condition, sympy.Ne):
            if edge == values[0] // step:
                self.smallest[symbol] = values[0] + step
            return self.implies(condition)
        if isinstance(condition, sympy.Eq):
            return False
        below = isinstance(condition, sympy.StrictLessThan | sympy.LessThan) == bool(slope > 0)
        strict = isinstance(condition, sympy.StrictLessThan | sympy.StrictGreaterThan)
        if below:
            most = int(ceil(edge) - 1 if strict else floor(edge))
            self.largest[symbol] = min(most * step, self.largest.get(symbol, most * step))
        else:
            least = int(floor(edge) + 1 if strict else ceil(edge))
            self.smallest[symbol] = max(least * step, self.smallest.get(symbol, _SMALLEST))
        return True

    def _find_threshold(self, condition: sympy.Basic) -> bool:
        """``(height // 2) ** 2 > 64``: one size, from which on, or up to which, the condition is true."""
        (symbol,) = condition.free_symbols
        values = self.list_values(symbol)
        truths = [_is_true(condition, {symbol: size}) for size in islice(values, _MOST_TRIED)]
        turns = [place for place in range(1, len(truths)) if truths[place] != truths[place - 1]]
        if len(turns) != 1:
            return False
        if truths[0]:
            self.largest[symbol] = values[turns[0] - 1]
            return True
        narrowed = Bounds(self.multiples, {**self.smallest, symbol: values[turns[0]]}, self.largest)
        if narrowed.implies(condition):
            self.smallest[symbol] = values[turns[0]]
            return True
        return False


def narrow(bounds: Bounds, conditions: Iterable[sympy.Basic]) -> list[sympy.Basic]:
    """Narrows bounds by conditions, in whatever order they help each other.

    Returns:
        The conditions that the bounds do not imply: relations.
    """
    left, count = list(dict.fromkeys(conditions)), -1
    while len(left) != count:
        count = len(left)
        left = [condition for condition in left if not bounds.absorb(condition)]
    return [condition for condition in left if not bounds.implies(condition)]


_relate = lru_cache(maxsize=100)(to_relation)


def _is_true(condition: sympy.Basic, sizes: dict[sympy.Symbol, int]) -> bool:
    try:
        return _relate(condition).holds({symbol.name: size for symbol, size in sizes.items()})
    except NotImplementedError:
        return False


def _list_divisors(condition: sympy.Basic) -> dict[sympy.Symbol, int]:
    """What the sizes in a condition are divided by."""
    steps: dict[sympy.Symbol, int] = {}
    for part in condition.atoms(FloorDiv, Mod, PythonMod, ModularIndexing):
        if part.args[1].is_Integer:
            for symbol in part.args[0].free_symbols:
                steps[symbol] = lcm(steps.get(symbol, 1), abs(int(part.args[1])))
    return steps
