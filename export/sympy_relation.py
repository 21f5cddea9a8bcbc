"""From torch's expressions of sizes to the relations of a manifest."""

from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy import functions as torch_functions

from zeus_trt.runtime.bundle.relation import Relation

Terms = tuple[int | float | str, ...]

_COMPARE = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.StrictLessThan: "<", sympy.LessThan: "<=", sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}  # fmt: skip
_BINARY = {
    "FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%", "IntTrueDiv": "/", "FloatTrueDiv": "/",
    "FloatPow": "**", "BitwiseFn_bitwise_and": "&", "BitwiseFn_bitwise_or": "|",
}  # fmt: skip
_UNARY = {
    "Abs": ("abs()",), "ToFloat": ("float()",), "TruncToInt": ("trunc()",), "TruncToFloat": ("trunc()", "float()"),
    "FloorToInt": ("floor()",), "CeilToInt": ("ceil()",), "floor": ("floor()",), "ceiling": ("ceil()",),
    "RoundToInt": ("round()",), "OpaqueUnaryFn_sqrt": ("sqrt()",), "Identity": (),
}  # fmt: skip
_FOLDS = {"Add": "+", "Mul": "*", "Max": "max()", "Min": "min()", "And": "and", "Or": "or"}
_MOST_POWER = 8


def to_relation(expression: sympy.Basic, origin: str = "") -> Relation:
    """The relation that a condition is, over symbols that have the names of sizes.

    Raises:
        NotImplementedError: A function that relations do not have.
    """
    return Relation(_write(expression), origin)


def _write(node: Any) -> Terms:
    name = type(node).__name__
    if isinstance(node, sympy.Symbol):
        return (node.name,)
    if isinstance(node, sympy.Integer):
        return (int(node),)
    if isinstance(node, sympy.Float):
        return (float(node),)
    if isinstance(node, sympy.Rational):
        return (int(node.p), int(node.q), "/")
    for kind, symbol in _COMPARE.items():
        if isinstance(node, kind):
            return (*_write(node.args[0]), *_write(node.args[1]), symbol)
    if name == "CeilDiv":
        return _write(-torch_functions.FloorDiv(-node.args[0], node.args[1]))
    if name == "Not":
        return (*_write(node.args[0]), "not")
    if name == "Mul" and node.args[0] == -1:
        return (0, *_write(-node), "-")
    if name in _FOLDS:
        return _fold(_order(node), _FOLDS[name])
    if name in _BINARY:
        return (*_write(node.args[0]), *_write(node.args[1]), _BINARY[name])
    if name in _UNARY:
        return (*_write(node.args[0]), *_UNARY[name])
    if name in ("Pow", "PowByNatural") and node.args[1].is_Integer and 0 < node.args[1] <= _MOST_POWER:
        return _fold([node.args[0]] * int(node.args[1]), "*")
    if name == "ModularIndexing":
        base, divisor, modulus = node.args
        return (*_write(base), *_write(divisor), "//", *_write(modulus), "%")
    raise NotImplementedError(name)


def _order(node: Any) -> Sequence[Any]:
    """Arguments, those with a minus last: ``a - b`` and not ``0 - b + a``."""
    return sorted(node.args, key=lambda part: part.could_extract_minus_sign()) if node.is_Add else node.args


def _fold(parts: Sequence[Any], symbol: str) -> Terms:
    terms = _write(parts[0])
    for part in parts[1:]:
        if symbol == "+" and part.could_extract_minus_sign():
            terms = (*terms, *_write(-part), "-")
        else:
            terms = (*terms, *_write(part), symbol)
    return terms
