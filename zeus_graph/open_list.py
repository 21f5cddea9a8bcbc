"""Lists that other packages add names to, by entry points: predictors, policies, solvers and metrics."""

from importlib.metadata import entry_points
from typing import Any, Literal

from zeus_trt.errors import ZeusError

Kind = Literal["predictor", "policy", "solver", "metric"]

_GROUPS = {"predictor": "predictors", "policy": "policies", "solver": "solvers", "metric": "metrics"}


def find_outside(kind: Kind, name: Any) -> Any:
    """What another package offers by this name in the group ``zeus_trt.predictors`` and so on; None without one.

    Raises:
        ZeusError: It does not load, or is nothing that can be called.
    """
    for point in entry_points(group=f"zeus_trt.{_GROUPS[kind]}"):
        if point.name == name:
            try:
                found = point.load()
            except Exception as error:  # other people's code
                raise _refuse(kind, name, point.value, f"{type(error).__name__}: {error}") from error
            if not callable(found):
                raise _refuse(kind, name, point.value, f"a {type(found).__name__}")
            return found
    return None


def _refuse(kind: str, name: str, place: str, found: str) -> ZeusError:
    return ZeusError(
        f"{kind} {name}: got {found} from {place}; expected a function or a class. Repair or remove that package."
    )
