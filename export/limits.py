"""How sizes are tied for tracing, and the rules that tracing finds for them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol

import sympy
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.bounds import Bounds, narrow
from zeus_trt.export.guards import Guard, list_guards
from zeus_trt.export.sympy_relation import to_relation
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec


class Traced(Protocol):
    """What is traced: its inputs, and the sizes that vary, factors before products."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def symbols(self) -> tuple[SymbolSpec, ...]: ...


def tie_sizes(captured: Traced, values: Sequence[Any]) -> None:
    """Tells the exporter which sizes are equal, and which are products of others."""
    sizes: dict[str, Any] = {}
    for name, size in list_sizes(captured, values):
        torch._check(size == sizes.setdefault(name, size))
    for symbol in captured.symbols:
        if symbol.factors and sizes.keys() >= {*symbol.factors}:
            scale = Fraction(symbol.scale)
            whole = scale.numerator
            for factor in symbol.factors:
                whole = whole * sizes[factor]
            if symbol.name in sizes:
                torch._check(sizes[symbol.name] * scale.denominator == whole)
            elif scale.denominator > 1:  # a size of outputs alone
                torch._check(whole % scale.denominator == 0)


def read_rules(captured: Traced, program: torch.export.ExportedProgram) -> SizeRules:
    """The rules that a traced graph has for its sizes, from every condition that tracing met on its way.

    A condition of one size becomes a limit where it can; any other a relation. The batch may be 1, which torch
    cannot trace: verification runs it.

    Raises:
        ZeusError: A condition that is no relation of the captured sizes.
    """
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(captured.inputs) :]
    found = list(list_sizes(captured, [node.meta["val"] for node in nodes]))
    names = {size.node._expr: sympy.Symbol(name, integer=True, positive=True) for name, size in found}
    bounds = Bounds(smallest=dict.fromkeys(names.values(), 2))
    environment: Any = found[0][1].node.shape_env if found else None
    guards = _name_guards(list_guards(environment, program.graph), names, environment.var_to_range) if found else {}
    products = _write_products(captured)
    conditions = {condition.xreplace(products): condition for condition in guards}
    left = narrow(bounds, conditions)
    written = [_relate(conditions[condition], guards[conditions[condition]]) for condition in left]
    relations = {relation.terms: relation for relation in reversed(written)}  # torch has two ways to write a remainder
    values = {spec.name: spec.value for spec in captured.inputs if spec.value}
    batch = captured.inputs[0].axes[0]
    symbols = [_limit(spec, bounds, spec.name == batch) for spec in captured.symbols]
    return SizeRules(
        {spec.name: spec.axes for spec in captured.inputs}, values, tuple(symbols), tuple(reversed(relations.values()))
    )


def _name_guards(
    guards: Iterator[Guard], names: Mapping[sympy.Symbol, sympy.Symbol], ranges: Mapping[sympy.Symbol, Any]
) -> dict[sympy.Basic, Guard]:
    """The guards by their condition on the captured sizes; ``ranges`` are those of other symbols, read from data."""
    named: dict[sympy.Basic, Guard] = {}
    for guard in guards:
        condition = guard.expression.xreplace(names)
        if condition == sympy.true or not condition.free_symbols & {*names.values()}:
            continue  # a condition on data alone, such as how many tokens are masked, says nothing of sizes
        if strange := condition.free_symbols - {*names.values()}:
            if _compares_shapes(condition) or _bounds_part(condition, strange):
                continue
            if _read_bounds(condition.free_symbols, ranges).implies(condition):
                continue
            raise _refuse(guard, f"{condition}, where {min(map(str, strange))} is no size of an input")
        for part in sympy.And.make_args(condition):
            named.setdefault(part, guard)
    return named


def _compares_shapes(condition: sympy.Basic) -> bool:
    """Whether it says that two shapes agree: an operator of the graph fails where they do not."""
    return all(isinstance(part, sympy.Eq) for part in sympy.Or.make_args(condition))


def _bounds_part(condition: sympy.Basic, data: Collection[sympy.Symbol]) -> bool:
    """Whether it says that data ask for no more than there is: a graph's slices end there as Python's do."""
    return isinstance(condition, sympy.LessThan) and condition.lhs in data


def _read_bounds(symbols: Iterable[sympy.Symbol], ranges: Mapping[sympy.Symbol, Any]) -> Bounds:
    """What is known of sizes and of symbols that are read from data."""
    least = {symbol: int(ranges[symbol].lower) if symbol in ranges else 2 for symbol in symbols}
    return Bounds(dict.fromkeys(symbols, 1), least)


def _write_products(captured: Traced) -> dict[sympy.Symbol, sympy.Basic]:
    """Each size that is a product, by its factors."""
    products = {}
    for symbol in captured.symbols:
        if symbol.factors:
            whole = sympy.Rational(symbol.scale)
            for factor in symbol.factors:
                whole = whole * sympy.Symbol(factor, integer=True, positive=True)
            products[sympy.Symbol(symbol.name, integer=True, positive=True)] = whole
    return products


def _relate(condition: sympy.Basic, guard: Guard) -> Relation:
    try:
        return _order(to_relation(condition, guard.origin))
    except NotImplementedError as error:
        raise _refuse(guard, f"{condition}, which has {error}") from error


def _order(relation: Relation) -> Relation:
    """The relation; a remainder that is not 0 is above it, and one that is not above 0 is 0."""
    *_, divisor, modulo, zero, compare = ("", *relation.terms)
    same = {"!=": ">", "<=": "=="}.get(str(compare))
    if same and (modulo, zero) == ("%", 0) and isinstance(divisor, int) and divisor > 0:
        return replace(relation, terms=(*relation.terms[:-1], same))
    return relation


def _refuse(guard: Guard, condition: str) -> ZeusError:
    where = f" at {guard.origin}" if guard.origin else ""
    return ZeusError(
        f"denoiser: got a condition on its sizes{where} that no manifest can hold ({condition}); expected a comparison "
        "of sums, products, quotients and remainders of the sizes of its inputs. Vary fewer settings, or change the "
        "model's code."
    )


def _limit(spec: SymbolSpec, bounds: Bounds, is_batch: bool) -> SymbolSpec:
    symbol = sympy.Symbol(spec.name, integer=True, positive=True)
    smallest = bounds.smallest.get(symbol, 2)
    return replace(
        spec,
        multiple_of=bounds.multiples.get(symbol, 1),
        minimum=1 if smallest <= 2 and (is_batch or spec.factors) else smallest,
        maximum=bounds.largest.get(symbol),
    )


def list_sizes(captured: Traced, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every size that varies, under its symbol; a symbol comes once per axis that has it."""
    for spec, value in zip(captured.inputs, values, strict=True):
        if spec.value:
            yield spec.value, value
        yield from ((axis, value.shape[place]) for place, axis in enumerate(spec.axes) if isinstance(axis, str))
