"""Tables of predictor rows, checked."""

import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_STEPS, is_whole, show

Row = Mapping[int, float]
"""Weights over the outputs used at earlier steps, keyed by step."""


def read_table(table: Any) -> dict[int, Row]:
    """The rows as plain numbers, by skipped step.

    Raises:
        ZeusError: Another form, weights that are not finite, or weights on steps that do not come before.
    """
    if not isinstance(table, Mapping):
        raise _refuse(show(table))
    for step, row in table.items():
        if not is_whole(step) or not 0 <= step < MAX_STEPS or not isinstance(row, Mapping):
            raise _refuse(f"{show(row)} for step {show(step)}")
    return {int(step): _read_row(int(step), row) for step, row in table.items()}


def _read_row(step: int, row: Mapping[Any, Any]) -> Row:
    for source, weight in row.items():
        if not is_whole(source) or not 0 <= source < step:
            raise ZeusError(
                f"predictor table: got a weight on step {show(source)} for step {step}; expected earlier full steps. "
                "Change it."
            )
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not abs(weight) <= sys.float_info.max:  # so NaN is refused
            raise ZeusError(
                f"predictor table: got the weight {show(weight)} for step {step}; expected finite numbers. Change it."
            )
    return {int(source): float(weight) for source, weight in row.items()}


def _refuse(found: str) -> ZeusError:
    return ZeusError(
        f"predictor table: got {found}; expected a mapping of skipped steps to mappings of earlier full steps to "
        "weights. Change it."
    )
