"""Options by name, sorted by the dataclasses that hold them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def split_options(options: Mapping[str, Any], *kinds: Any) -> list[dict[str, Any]]:
    """The options of each dataclass of ``kinds``; one that several have goes to each.

    Raises:
        TypeError: A name that none of them has, as Python raises for a call.
    """
    known = [{field.name for field in fields(kind)} for kind in kinds]
    if unknown := sorted(options.keys() - set().union(*known)):
        raise TypeError(f"got an unexpected option {unknown[0]!r}")
    return [{name: value for name, value in options.items() if name in names} for names in known]
