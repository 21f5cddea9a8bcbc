"""How far a denoiser's own tables reach: a graph takes no larger size."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from zeus_trt.errors import escape
from zeus_trt.export.agreement import BeyondTable, Case
from zeus_trt.export.relaxation import Verify
from zeus_trt.runtime.bundle.manifest import Verification
from zeus_trt.runtime.bundle.size_rules import SizeRules

_log = logging.getLogger("zeus_trt")


def verify_in_reach(
    rules: SizeRules, list_cases: Callable[[SizeRules], Iterable[Case]], verify: Verify
) -> tuple[SizeRules, tuple[Verification, ...]]:
    """Compares a graph at the sizes that its rules allow, and that the eager model's tables of positions reach.

    Args:
        rules: What tracing found.
        list_cases: Calls to compare at sizes that rules allow.
        verify: Compares the graph with the eager model.

    Returns:
        The rules, whose largest sizes are verified ones where the eager model refused larger ones.

    Raises:
        ZeusError: As ``verify`` does; it refuses the smallest sizes.
    """
    while True:
        try:
            return rules, verify(tuple(list_cases(rules)))
        except BeyondTable as error:
            narrower = _stop_below(rules, error.case)
            if narrower == rules:
                raise
            rules = narrower
            limits = [f"{symbol.name} at most {symbol.maximum}" for symbol in rules.symbols if symbol.maximum]
            _log.warning("sizes: the graph takes %s (%s)", ", ".join(limits), escape(str(error)))


def _stop_below(rules: SizeRules, case: Case) -> SizeRules:
    """The rules with a largest size below each of a case that is more than the smallest one that was captured."""
    sizes, rows = rules.measure(case.inputs), next(iter(rules.axes.values()))[0]
    symbols = []
    for symbol in rules.symbols:
        below = [size for size in symbol.observed if size < sizes.get(symbol.name, 0)]
        is_side = not symbol.factors and symbol.name != rows
        symbols.append(replace(symbol, maximum=max(below)) if below and is_side else symbol)
    return replace(rules, symbols=tuple(symbols))
