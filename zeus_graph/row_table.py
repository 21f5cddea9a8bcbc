"""Rows of predictors: what they read, and tables of them, checked."""

import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_STEPS, is_whole, show


class Sample(NamedTuple):
    """The sample before a step, as something that a row reads: its own step, or an earlier full one."""

    step: int


Source = int | Sample
"""What a weight is for: the output used at a step, or a sample."""

Row = Mapping[Source, float]
"""Weights over the outputs used at earlier steps, and over samples."""


def step_of(source: Source) -> int:
    """The step that a source belongs to."""
    return source.step if isinstance(source, Sample) else source


def write_table(table: Mapping[int, Row]) -> dict[str, dict[str, float]]:
    """Rows as JSON data: ``"12"`` is the output used at step 12, ``"x12"`` the sample before it."""
    return {str(step): {_write_source(source): w for source, w in row.items()} for step, row in table.items()}


def parse_table(rows: Mapping[int, Mapping[str, float]]) -> dict[int, Row]:
    """Rows from JSON data that ``write_table`` made; raises ZeusError for another key."""
    return {step: {_parse_source(step, key): weight for key, weight in row.items()} for step, row in rows.items()}


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
        place = source.step if isinstance(source, Sample) else source
        if not is_whole(place) or not 0 <= place < step + isinstance(source, Sample):
            raise ZeusError(
                f"predictor table: got a weight on step {show(place)} for step {step}; expected earlier full steps. "
                "Change it."
            )
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not abs(weight) <= sys.float_info.max:  # so NaN is refused
            raise ZeusError(
                f"predictor table: got the weight {show(weight)} for step {step}; expected finite numbers. Change it."
            )
    return {_plain(source): float(weight) for source, weight in row.items()}


def _plain(source: Any) -> Source:
    return Sample(int(source.step)) if isinstance(source, Sample) else int(source)


def _write_source(source: Source) -> str:
    return f"x{source.step}" if isinstance(source, Sample) else str(source)


def _parse_source(step: int, key: str) -> Source:
    digits = key.removeprefix("x")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_STEPS))):
        raise ZeusError(
            f"predictor table: got a weight on {show(key)} for step {step}; expected a step such as 12, or x12 for the "
            "sample before it. Change it."
        )
    return int(digits) if digits == key else Sample(int(digits))


def _refuse(found: str) -> ZeusError:
    return ZeusError(
        f"predictor table: got {found}; expected a mapping of skipped steps to mappings of earlier full steps to "
        "weights. Change it."
    )
