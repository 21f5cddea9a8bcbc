"""A relation between sizes, in a form that any language can check."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zeus_trt.errors import ZeusError

MOST_TERMS = 1000


def _power(base: float, exponent: float) -> float:
    return math.pow(base, exponent)  # of floats: an integer could grow without an end


_COMPARE: dict[str, Callable[..., Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_LOGIC: dict[str, Callable[..., Any]] = {"and": lambda one, two: one and two, "or": lambda one, two: one or two}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": _power, "min()": min, "max()": max, "&": operator.and_, "|": operator.or_,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {
    "abs()": abs, "floor()": math.floor, "ceil()": math.ceil, "trunc()": math.trunc, "round()": round,
    "sqrt()": math.sqrt, "float()": float,
}  # fmt: skip
_BINARY = {**_ARITHMETIC, **_COMPARE, **_LOGIC}
_BINDS = {
    "or": 0, "and": 1, **dict.fromkeys(_COMPARE, 2), "|": 3, "&": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6,
    "**": 7,
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """What sizes must satisfy together: ``("height", "width", ">")`` is ``height > width``.

    Args:
        terms: In postfix order: numbers, names of symbols and operators. Operators of two values: ``+ - * / // % **
            min() max() & |``, comparisons ``== != < <= > >=``, ``and``, ``or``. Of one: ``not``, ``abs()``,
            ``floor()``, ``ceil()``, ``trunc()``, ``round()``, ``sqrt()``, ``float()``. ``/`` and ``**`` are those of
            64-bit floats, ``//`` and ``%`` round down.
        origin: File and line of the model that asks for it; empty if it is not known.

    Raises:
        ZeusError: Terms that are no relation.
    """

    terms: tuple[int | float | str, ...]
    origin: str = ""

    def __post_init__(self) -> None:
        kinds: list[bool] = []  # of the values on the stack: whether each is a truth
        for term in self.terms if len(self.terms) <= MOST_TERMS else ():
            if not isinstance(term, str):
                if isinstance(term, bool) or not isinstance(term, int | float) or not math.isfinite(term):
                    raise self._refuse(term)
                kinds.append(False)
                continue
            takes, gives = _find_kinds(term)
            if takes and kinds[-len(takes) :] != takes:
                raise self._refuse(term)
            kinds[len(kinds) - len(takes) :] = [gives]
        if kinds != [True]:
            raise self._refuse(self.terms[-1] if self.terms else "nothing")

    def _refuse(self, term: Any) -> ZeusError:
        return ZeusError(
            f"relation: got {str(term)[:40]!r} at the wrong place in {len(self.terms)} terms; expected a comparison of "
            f"sizes in postfix order, of at most {MOST_TERMS} terms. Export the model again."
        )

    @property
    def names(self) -> frozenset[str]:
        """The symbols in it."""
        return frozenset(term for term in self.terms if isinstance(term, str) and not _is_operator(term))

    def rename(self, rename: Callable[[str], int | str]) -> "Relation":
        """The same with other symbols, or numbers, in the places of its symbols."""
        names = self.names
        return replace(self, terms=tuple(rename(str(term)) if term in names else term for term in self.terms))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether these sizes satisfy it. Sizes that it has no value for, such as a division by zero, do not.

        Args:
            sizes: By symbol; all of ``names``.
        """
        stack: list[Any] = []
        try:
            for term in self.terms:
                if not isinstance(term, str):
                    stack.append(term)
                elif term in _BINARY:
                    right = stack.pop()
                    stack.append(_BINARY[term](stack.pop(), right))
                elif term in _UNARY:
                    stack.append(_UNARY[term](stack.pop()))
                elif term == "not":
                    stack.append(not stack.pop())
                else:
                    stack.append(sizes[term])
        except (ArithmeticError, ValueError, TypeError):
            return False
        return bool(stack.pop())

    def __str__(self) -> str:
        stack: list[tuple[str, str]] = []  # text and outermost operator
        for term in self.terms:
            if not isinstance(term, str) or not _is_operator(term):
                stack.append((str(term), ""))
            elif term in _BINDS:
                right, left = stack.pop(), stack.pop()
                stack.append((f"{_enclose(left, term)} {term} {_enclose(right, term, is_right=True)}", term))
            elif term in _BINARY:
                right, left = stack.pop(), stack.pop()
                stack.append((f"{term[:-1]}{left[0]}, {right[0]})", ""))
            else:
                stack.append((f"{term.removesuffix('()')}({stack.pop()[0]})", ""))
        return stack[0][0]


def _enclose(operand: tuple[str, str], operator: str, is_right: bool = False) -> str:
    """An operand, in parentheses unless it binds more tightly, or is a sum in a sum or a product in a product."""
    text, own = operand
    is_same = (own == operator and operator in ("+", "*", "and", "or")) or (own, operator) == ("+", "-")
    return text if not own or (is_same and not is_right) or _BINDS[own] > _BINDS[operator] else f"({text})"


def _is_operator(term: str) -> bool:
    return term in _BINARY or term in _UNARY or term == "not"


def _find_kinds(term: str) -> tuple[list[bool], bool]:
    """Whether each of the values that a term takes is a truth, and whether what it gives is."""
    if term in _COMPARE:
        return [False, False], True
    if term in _LOGIC:
        return [True, True], True
    if term == "not":
        return [True], True
    if term in _ARITHMETIC:
        return [False, False], False
    return ([False], False) if term in _UNARY else ([], False)
