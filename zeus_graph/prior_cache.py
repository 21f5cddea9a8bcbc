"""What searches of the prior found, kept in the user's cache folder for the next process."""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import zeus_trt
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.kernel import Kernel
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.solver_program import SolverProgram

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "ZEUS_TRT_CACHE_HOME"
KEPT = 1000
"""Files; the oldest go first."""


Found = tuple[Mapping[str, float], Plan]
"""By how many dB a plan is foreseen to be better than evenly spread steps, by model that was left out; and the plan."""


@dataclass(frozen=True, eq=False)
class _File(json_file.Program):
    _thing = "kept plan"
    _advice = "It is searched again."

    gains: Mapping[str, float]
    plan: Mapping[str, Any]


def find_cache_folder() -> Path | None:
    """The folder of what can be made again: ``ZEUS_TRT_CACHE_HOME``, else the place that the system has for it.

    None where ``ZEUS_TRT_CACHE_HOME`` is no absolute path, or the user has no home folder: nothing is kept.
    """
    asked = os.environ.get(CACHE_VARIABLE)
    if asked is not None:
        return Path(asked) if os.path.isabs(asked) else None
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "zeus-trt" / "Cache"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification ignores relative paths
        return Path(shared) / "zeus-trt"
    home = os.path.expanduser("~")
    place = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path(home, place, "zeus-trt") if os.path.isabs(home) else None


def find_place(program: SolverProgram, nfe: int, kernels: Sequence[Kernel]) -> Path | None:
    """The file of a search, named by all that determines what it finds; None where nothing is kept."""
    folder = find_cache_folder()
    models = [json_file.plain(vars(kernel)) for kernel in kernels]
    name = json_file.digest([_digest_code(), program.fingerprint, nfe, models])
    return None if folder is None else folder / "prior" / f"{name}.json"


def recall(place: Path | None) -> Found | None:
    """What was kept there; None if it is nothing, or nothing that can be read."""
    if place is None or not place.exists():
        return None
    try:
        file = _File.load(place)
        return file.gains, Plan.from_json(dict(file.plan))
    except ZeusError as error:
        logger.info("the plan is searched again: %s", error)
        return None


def keep(place: Path | None, found: Found) -> None:
    """Writes the file, and deletes the oldest ones beyond ``KEPT``; a folder that cannot be written means no file."""
    if place is None:
        return
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _File(found[0], found[1].to_json()).save(place)
        ages = sorted((one.stat().st_mtime, one) for one in place.parent.glob("*.json"))
    except (OSError, ZeusError) as error:
        logger.info("the plan is not kept for another process: %s", error)
        return
    for _, old in ages[:-KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()


@cache
def _digest_code() -> str:
    """Digest of the sources of this package: another version may find another plan."""
    sources = sorted(
        (one for one in files(__package__).iterdir() if one.name.endswith(".py")), key=lambda one: one.name
    )
    return json_file.digest([zeus_trt.__version__, *(one.read_text(encoding="utf-8") for one in sources)])
