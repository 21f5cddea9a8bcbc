"""The policy of a run, from the few words in which a caller asks for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import show
from zeus_trt.zeus_graph.criteria import AdaptivePolicy, EasyCachePolicy, SadaPolicy
from zeus_trt.zeus_graph.open_list import find_outside
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.policy import OpenPolicy, Policy, PolicyMaker, StaticPolicy
from zeus_trt.zeus_graph.row_policy import DriftPolicy

POLICIES: dict[str, Callable[..., Policy]] = {
    "adaptive": AdaptivePolicy,
    "drift": DriftPolicy,
    "easycache": EasyCachePolicy,
    "sada": SadaPolicy,
}
"""Name -> the class of a policy; its first setting is ``setting``."""


def choose_policy(
    drift_threshold: float | None = None, policy: str | PolicyMaker | None = None, is_open: bool = False
) -> PolicyMaker:
    """Makes what makes the policies of a run.

    Args:
        drift_threshold: Measure drift; a step after one whose drift is above this is full too.
        policy: As in ``read_policy``, instead of the threshold.
        is_open: Whether steps ahead may become full for other reasons.

    Raises:
        ZeusError: Both are given, or as ``read_policy``.
    """
    if policy is not None and drift_threshold is not None:
        raise ZeusError("drift_threshold: got one beside a policy; expected one of them. Leave the other out.")
    if policy is not None:
        return read_policy(policy)
    if drift_threshold is not None:
        return partial(DriftPolicy, threshold=drift_threshold)
    return _make_open if is_open else StaticPolicy


def read_policy(policy: str | PolicyMaker) -> PolicyMaker:
    """Reads a policy by name, such as ``easycache=0.05`` or ``adaptive=0.01,floor=1,cap=3``.

    Args:
        policy: The name, its own setting after ``=``, and ``floor`` and ``cap``; or what makes policies, which is
            returned.

    Raises:
        ZeusError: An unknown name, or a setting that it does not take.
    """
    if not isinstance(policy, str):
        if not callable(policy):
            raise ZeusError(
                f"policy: got {show(policy)}; expected a name, or a function that makes a policy of a plan. Change it."
            )
        return policy
    first, *others = policy.replace(" ", "").split(",")
    name, equals, value = first.partition("=")
    made: Any = POLICIES.get(name) or find_outside("policy", name)
    if made is None:
        raise ZeusError(f"policy: got {show(name)}; expected one of {', '.join(POLICIES)}. Choose one of these.")
    settings = {getattr(made, "setting", "threshold"): _read_number(policy, value)} if equals else {}
    for other in others:
        key, _, value = other.partition("=")
        number = _read_number(policy, value)
        if key not in ("floor", "cap") or name == "drift" or number != int(number):
            raise ZeusError(
                f"policy: got {show(policy)}; expected {name}=NUMBER"
                f"{'' if name == 'drift' else ',floor=N,cap=N'}. Write it so."
            )
        settings[key] = int(number)
    return partial(made, **settings)


def settle_plan(make_policy: PolicyMaker, plan: Plan) -> Plan:
    """The plan with the rule by which a policy fills skipped steps, where that is its own."""
    rule = getattr(getattr(make_policy, "func", make_policy), "predictor", None)
    return plan if rule is None else replace(plan, predictor=rule)


def _read_number(policy: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ZeusError(f"policy: got {show(policy)}; expected a number from 0 on after =. Write it so.")
    return number


def _make_open(plan: Plan, grid: Sequence[Any] | None) -> Policy:
    return OpenPolicy(plan, grid) if plan.rule.table is None else StaticPolicy(plan, grid)
