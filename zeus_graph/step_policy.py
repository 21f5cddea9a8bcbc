"""The step policy of quantized checkpoints, ``quantization_config.runtime.diffusion_step_policy``, as a plan.

Serving projects keep the first and the last steps of a quantized transformer in 16 bit. Their policy of schema 1 and
type ``first_last_n`` is a plan of ``F`` and ``Q``: mode ``a16`` is ``F``, mode ``native`` is ``Q``.
"""

from collections.abc import Mapping
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import check_count, is_whole, show
from zeus_trt.zeus_graph.plan import Plan

_THING = "step policy"
_MODES = {"a16": "F", "native": "Q"}
_FIXED = {"schema_version": 1, "type": "first_last_n", "index_space": "denoising_loop_iteration"}
_KEYS = ("quantization_config", "runtime", "diffusion_step_policy")


def find_step_policy(data: Any) -> Any:
    """The policy in the JSON data of a transformer's ``config.json``, or the policy itself; None without one."""
    for key in _KEYS:
        if isinstance(data, Mapping) and key in data:
            data = data[key]
            if key == _KEYS[-1]:
                return data
    is_policy = isinstance(data, Mapping) and {"schema_version", "type"} <= data.keys()
    return data if is_policy else None


def read_step_policy(policy: Any, num_evaluations: int) -> Plan:
    """The plan of a policy, every step full.

    Args:
        policy: JSON data as ``find_step_policy`` finds it.
        num_evaluations: Length of the plan.

    Raises:
        ZeusError: Another schema or type, or a mode that is not known.
    """
    count = check_count("num_steps", num_evaluations, 1)
    policy = policy if isinstance(policy, Mapping) else {}
    for name, value in _FIXED.items():
        if policy.get(name) != value:
            raise _refuse(name, policy.get(name), repr(value))
    middle = _read_mode("default_mode", policy.get("default_mode"))
    first, first_letter = _read_end("first_steps", policy.get("first_steps"))
    last, last_letter = _read_end("last_steps", policy.get("last_steps"))
    shared = _read_mode("overlap", policy.get("overlap", "a16"))
    letters = []
    for step in range(count):
        begins, ends = step < first, step >= count - last
        letters.append(shared if begins and ends else first_letter if begins else last_letter if ends else middle)
    return Plan("".join(letters))


def write_step_policy(plan: Plan, scope: str = "transformer") -> dict[str, Any]:
    """The policy of a plan whose first and last steps are ``F``, and all others ``Q``.

    Args:
        plan: The plan.
        scope: Component that the policy is for.

    Raises:
        ZeusError: A plan that skips steps, or has ``F`` between ``Q``: no policy of this kind says that.
    """
    first = len(plan) - len(plan.steps.lstrip("F"))
    last = len(plan) - len(plan.steps.rstrip("F")) if first < len(plan) else 0
    if {*plan.steps[first : len(plan) - last]} - {"Q"}:
        raise ZeusError(
            f"plan: got {plan}; expected F at both ends and Q between them, which is all that a {_THING} can say. "
            "Write such a plan, or run this one with zeus-trt."
        )
    ends = {"first_steps": first, "last_steps": last}
    return {
        **_FIXED,
        "scope": [scope],
        "default_mode": "native",
        **{name: {"count": count, "mode": "a16"} for name, count in ends.items()},
        "overlap": "a16",
        "reasoner": "a16",
    }


def _read_end(name: str, end: Any) -> tuple[int, str]:
    if not isinstance(end, Mapping):
        raise _refuse(name, end, "a count of steps and their mode")
    if not is_whole(end.get("count")) or end["count"] < 0:
        raise _refuse(f"{name}.count", end.get("count"), "a number of steps")
    return int(end["count"]), _read_mode(f"{name}.mode", end.get("mode"))


def _read_mode(name: str, mode: Any) -> str:
    if not isinstance(mode, str) or mode not in _MODES:
        raise _refuse(name, mode, " or ".join(_MODES))
    return _MODES[mode]


def _refuse(name: str, value: Any, expected: str) -> ZeusError:
    return ZeusError(f"{_THING}: got {show(value)} as {name}; expected {expected}. Write the plan's letters instead.")
