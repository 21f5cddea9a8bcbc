"""How a pipeline's family turns an image-to-image strength into the first step that runs."""

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from zeus_trt.runtime.start import STRENGTH_RULES, find_begin

_IMAGE_TO_IMAGE = re.compile("Img2Img|VideoToVideo")
_ASKED = ((20, 0.58), (20, 0.6), (30, 0.35), (50, 0.77))


def find_strength_rule(pipeline: Any) -> str | None:
    """The rule of ``STRENGTH_RULES`` that the pipeline follows, or the image-to-image pipelines of its package.

    It is observed: their ``get_timesteps`` is called at a few strengths.

    Args:
        pipeline: A diffusers pipeline; its scheduler is not touched.

    Returns:
        The rule; None where the family takes no strength, follows another rule, or is not of one mind.
    """
    found = {_match([_observe(cls, *asked) for asked in _ASKED]) for cls in _list_classes(pipeline)}
    return found.pop() if len(found) == 1 else None


def _list_classes(pipeline: Any) -> Iterator[type]:
    own = type(pipeline)
    if hasattr(own, "get_timesteps"):
        yield own
        return
    if not own.__module__.startswith("diffusers.pipelines."):
        return
    package = importlib.import_module(own.__module__.rpartition(".")[0])
    for name in (name for name in sorted(dir(package)) if _IMAGE_TO_IMAGE.search(name)):
        with contextlib.suppress(RuntimeError, ImportError):  # diffusers names classes whose libraries are missing
            sibling = getattr(package, name)
            if hasattr(sibling, "get_timesteps"):
                yield sibling


def _observe(cls: Any, num_steps: int, strength: float) -> int | None:
    """Index of the first timestep that runs."""
    scheduler = SimpleNamespace(timesteps=list(range(num_steps)), order=1)
    given = {
        "num_inference_steps": num_steps, "strength": strength, "device": "cpu", "timesteps": scheduler.timesteps,
    }  # fmt: skip
    taken = inspect.signature(cls.get_timesteps).parameters
    try:
        timesteps = cls.get_timesteps(
            SimpleNamespace(scheduler=scheduler), **{name: value for name, value in given.items() if name in taken}
        )[0]
    except Exception:  # another signature, or other needs: not a rule that we know
        return None
    return timesteps[0] if len(timesteps) else None


def _match(begins: list[int | None]) -> str | None:
    for rule in STRENGTH_RULES:
        if begins == [find_begin(1, num_steps, strength, rule) for num_steps, strength in _ASKED]:
            return rule
    return None
