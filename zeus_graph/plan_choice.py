"""The plan of a run, from the few words in which a caller asks for it."""

import os
from collections.abc import Callable
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.calibrated_plan import load_plan
from zeus_trt.zeus_graph.plan import PRESETS, Plan
from zeus_trt.zeus_graph.predictor import Predictor, choose_predictor
from zeus_trt.zeus_graph.window import WINDOWS, Window, read_window

DEFAULT_RATIO = 3

Planner = Callable[[int], Plan]
"""Makes the plan for a number of evaluations."""


def choose_plan(
    plan: Plan | str | os.PathLike | Planner | None = None,
    ratio: int | None = None,
    window: str | Window | None = None,
    preset: str | None = None,
    predictor: str | Predictor | None = None,
) -> Planner:
    """Returns what makes the plan for a number of evaluations; wrong words are refused now.

    Args:
        plan: A plan, its letters, the file of a plan, the name of a preset, or a function that makes a plan for a
            number of evaluations.
        ratio: Skipped steps after each full one, instead of ``plan``; 3 by default.
        window: Steps that stay full at both ends, beside ``ratio`` or ``preset``: text that
            ``read_window`` reads, two fractions, or ``Ends``.
        preset: A name of ``PRESETS``, instead of ``ratio``.
        predictor: The rule that fills skipped steps; a calibrated plan has its own.

    Raises:
        ZeusError: Two ways to give the plan, or a plan, ratio, window, preset or predictor that does not exist.
    """
    asked = {"plan": plan, "ratio": ratio, "preset": preset, "window": window}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1 and given != ["ratio", "window"] and given != ["preset", "window"]:
        raise ZeusError(
            f"{given[1]}: got it beside a {given[0]}; expected one of the two, since each says which steps are full. "
            "Leave one out."
        )
    if isinstance(plan, str) and plan in PRESETS:
        plan, preset = None, plan
    if plan is None:
        return _make_uniform(ratio, window, preset, predictor)
    if not isinstance(plan, Plan | str | os.PathLike):
        if not callable(plan):
            raise ZeusError(f"plan: got {type(plan).__name__}; expected a Plan, letters or a file. Change it.")
        choose_predictor(Plan("F"), predictor)
        return plan
    written = plan if isinstance(plan, Plan) else load_plan(plan)
    choose_predictor(written, predictor)
    return written.check_length


def _make_uniform(ratio: Any, window: Any, preset: Any, predictor: str | Predictor | None) -> Planner:
    if preset is not None and preset not in PRESETS:
        raise ZeusError(f"preset: got {preset!r}; expected one of {', '.join(PRESETS)}. Choose one of these.")
    skipped = PRESETS[preset] if preset else DEFAULT_RATIO if ratio is None else ratio
    full = read_window(window) if isinstance(window, str) else WINDOWS["default"] if window is None else window
    choose_predictor(Plan.uniform(1, skipped, full), predictor)
    return lambda total: Plan.uniform(total, skipped, full)
