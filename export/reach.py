"""How far a denoiser's own tables reach: a graph takes no larger size."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from zeus_trt.errors import escape
from zeus_trt.export.agreement import BeyondTable, Case
from zeus_trt.export.relaxation import Verify
from zeus_trt.runtime.bundle.manifest import Verification
from zeus_trt.runtime.bundle.size_rules import SizeRules

_log = logging.getLogger("zeus_trt")


def verify_in_reach(
    rules: SizeRules, base: Mapping[str, Any], list_cases: Callable[[SizeRules], Iterable[Case]], verify: Verify
) -> tuple[SizeRules, tuple[Verification, ...]]:
    """Compares a graph at the sizes that its rules allow, and that the eager model's tables of positions reach.

    Args:
        rules: What tracing found.
        base: The inputs of the base run.
        list_cases: Calls to compare at sizes that rules allow.
        verify: Compares the graph with the eager model.

    Returns:
        The rules, whose largest sizes are verified ones where the eager model refused larger ones.

    Raises:
        ZeusError: As ``verify`` does; it refuses sizes that are no larger than those of the base run.
    """
    while True:
        try:
            return rules, verify(tuple(list_cases(rules)))
        except BeyondTable as error:
            narrower = _stop_below(rules, rules.measure(base), rules.measure(error.case.inputs))
            if narrower == rules:
                raise
            rules = narrower
            limits = [f"{symbol.name} at most {symbol.maximum}" for symbol in rules.symbols if symbol.maximum]
            _log.warning("sizes: the graph takes %s (%s)", ", ".join(limits), escape(str(error)))


def _stop_below(rules: SizeRules, base: Mapping[str, int], refused: Mapping[str, int]) -> SizeRules:
    """The rules with a largest size below each refused one that is larger than in the base run."""
    rows = next(iter(rules.axes.values()))[0]
    larger = {name for name, size in refused.items() if name != rows and size > base.get(name, size)}
    symbols = (
        replace(symbol, maximum=max(size for size in symbol.observed if size < refused[symbol.name]))
        if symbol.name in larger and not symbol.factors
        else symbol
        for symbol in rules.symbols
    )
    return replace(rules, symbols=tuple(symbols))
