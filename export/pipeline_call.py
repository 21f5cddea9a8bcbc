"""How a pipeline is called for its capture: with what it asks for, at any size."""

import ast
import copy
import importlib.util
import inspect
import math
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.arguments import (
    EMBEDDING,
    FORMS,
    MASK,
    MASK_VIDEO,
    ONE,
    PICTURE,
    ROWS,
    VIDEO,
    WORDS,
    Size,
    arrange,
    find_kind,
    list_widths,
    make,
)  # fmt: skip
from zeus_trt.export.denoisers import watch
from zeus_trt.export.recorder import STEPS
from zeus_trt.runtime.pipelines.arguments import list_parameters

SEED = "content_seed"
"""A setting of every ``PipelineCall``: which content is made."""
DETAIL = "prompt_detail"
UNEVEN = "detail_of_the_last_prompt"
"""A setting of every ``PipelineCall``: words that are appended to its prompts, which makes them longer."""
_MOST_GUESSES = 4
PER_PROMPT = ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")
_SIZED = (PICTURE, MASK, VIDEO, MASK_VIDEO)
_MAPS = ("effnet_in_channels", "effnet_embd")
"""Channels of an embedding of a picture that is a map of features, in the configs of the networks that read it."""


class MissingArgument(ZeusError):
    """A pipeline asks for an argument that cannot be made."""


@dataclass(frozen=True)
class PipelineCall:
    """Calls a pipeline at a setting, and makes what else it asks for. It is the ``run`` of ``Settings``.

    Args:
        kinds: What is made: name -> kind.
        given: What the user gives; pictures are resized and repeated as the setting asks for.
        form: How pictures are passed.
        shape: Of one row of an embedding; a size of -1 follows the height, then the width.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    form: str = ROWS
    shape: tuple[int, ...] = ()

    @property
    def is_sized_by_pictures(self) -> bool:
        """Whether it passes pictures, whose size is that of the setting."""
        return any(kind in _SIZED for kind in self.kinds.values()) or any(map(_is_picture, self.given.values()))

    def __call__(self, pipeline: Any, **setting: Any) -> Any:
        takes = list_parameters(pipeline)
        size = _find_size(setting)
        shape = _find_shape(self.shape, size)
        made = {name: make(kind, name, size, self.form, shape) for name, kind in self.kinds.items()}
        # A copy of each list: Z-Image Omni writes into its prompts.
        passed = {name: copy.copy(value) for name, value in setting.items() if name in takes}
        if DETAIL in setting:
            passed["prompt"] = _append(passed["prompt"], setting[DETAIL])
        if UNEVEN in setting:
            passed["prompt"] = [*passed["prompt"][:-1], f"{passed['prompt'][-1]} {setting[UNEVEN]}"]
        if "num_inference_steps" in takes:
            passed["num_inference_steps"] = steps = _count_steps(takes, self.given)
            passed |= _cut_schedules(takes, steps)
        if "max_area" in takes:
            passed["max_area"] = size.height * size.width  # FLUX Kontext takes the sizes for an aspect ratio alone
        if isinstance(passed.get("prompt"), str):  # pipelines compare the types of their prompts
            made |= {name: made[name][0] for name, kind in self.kinds.items() if kind == WORDS}
        given = {name: _fit(name, value, size, self.form) for name, value in self.given.items()}
        return pipeline(**{**passed, **made, **given})


def _append(prompt: str | list[str], detail: str) -> str | list[str]:
    return f"{prompt} {detail}" if isinstance(prompt, str) else [f"{one} {detail}" for one in prompt]


def find_call(pipeline: Any, base: Mapping[str, Any], given: Mapping[str, Any]) -> PipelineCall:
    """What a pipeline runs with: the least that it is content with.

    What its signature requires is made; then, as long as the pipeline refuses that, what it names in its words, or
    the next argument of a kind that can be made. Each try runs the pipeline with noise for the answers of its networks.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        base: The setting.
        given: What the user gives.

    Raises:
        MissingArgument: The pipeline runs with nothing that can be made.
    """
    takes = list_parameters(pipeline)
    named = [p for p in takes.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    free = [p for p in named if p.name not in base and p.name not in given]
    kinds = {p.name: find_kind(p, "num_frames" in takes) for p in free}
    required = {p.name: kinds[p.name] for p in free if p.default is p.empty}
    if unknown := [name for name, kind in required.items() if kind is None]:
        raise MissingArgument(
            f"{unknown[0]}: got none for a {type(pipeline).__name__}, which requires it; expected a value that cannot "
            f"be made up. Pass the argument {unknown[0]}."
        )
    open_kinds = {p.name: kinds[p.name] for p in free if p.default is None and kinds[p.name] not in (None, EMBEDDING)}
    guesses = [name for name, kind in open_kinds.items() if kind != WORDS]
    guesses += ["negative_prompt"] if "negative_prompt" in open_kinds else []  # some pipelines do not read None
    made = {name: str(kind) for name, kind in required.items()}
    for _ in range(_MOST_GUESSES):
        failures: list[Exception] = []
        for call in _vary_form(pipeline, PipelineCall(made, given)):
            try:
                watch(pipeline, partial(call, **base))
                return call
            except Exception as error:  # pipelines, their parts and torch each raise their own
                _check_packages(pipeline, error)
                failures.append(error)
        # A form that the pipeline refuses says less than what fails after it.
        failure = next((error for error in failures if not any(_names(error, name) for name in made)), failures[0])
        left = [name for name in guesses if name not in made]
        if not left:
            break
        name = next((name for name in left if _names(failure, name)), left[0])
        made = {**made, name: str(kinds[name])}
    raise _say_missing(pipeline, failure, [p.name for p in free]) from failure


def runs(pipeline: Any, call: PipelineCall, setting: Mapping[str, Any]) -> bool:
    """Whether a pipeline runs at a setting."""
    try:
        watch(pipeline, partial(call, **setting))
    except Exception:  # pipelines, their parts and torch each raise their own
        return False
    return True


def share_pictures(pipeline: Any, call: PipelineCall, base: Mapping[str, Any], more: Mapping[str, Any]) -> PipelineCall:
    """The call with one picture for all rows, where the pipeline takes a list of them for several of each row.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        call: What it runs with.
        base: The setting.
        more: What asks for another row.
    """
    if call.form != ROWS or not call.is_sized_by_pictures or not more:
        return call

    def is_steady(call: PipelineCall) -> bool:
        """Whether what one row is passed stays with more rows."""
        try:
            one, other = (watch(pipeline, partial(call, **{**base, **change})).structures for change in ({}, more))
        except Exception:  # pipelines, their parts and torch each raise their own
            return False
        return one == other

    shared = replace(call, form=ONE)
    return call if is_steady(call) or not is_steady(shared) else shared


def _vary_form(pipeline: Any, call: PipelineCall) -> Iterator[PipelineCall]:
    has_pictures, has_embeddings = call.is_sized_by_pictures, EMBEDDING in call.kinds.values()
    shapes: Sequence[tuple[int, ...]] = [()]
    if has_embeddings:
        shapes = [(width,) for width in list_widths(pipeline)]
        configs = [getattr(part, "config", {}) for part in pipeline.components.values()]
        channels = [c.get(name) for c in configs if isinstance(c, Mapping) for name in _MAPS]
        shapes = [(found, -1, -1) for found in channels if found] + shapes
    for shape, form in product(shapes, FORMS if has_pictures else FORMS[:1]):
        yield replace(call, form=form, shape=shape)


def _check_packages(pipeline: Any, error: Exception) -> None:
    """Names the package that a pipeline lacks: diffusers leaves names of optional ones undefined."""
    name = getattr(error, "name", None)
    if isinstance(error, NameError) and isinstance(name, str):
        name = _find_package(error, name)
    elif not isinstance(error, ImportError):
        return
    if isinstance(name, str) and name.isidentifier() and importlib.util.find_spec(name) is None:
        raise ZeusError(
            f"model: got a {type(pipeline).__name__}, which uses the package {name}; expected it to be installed. "
            f"Install it: pip install {name}."
        ) from error


def _find_package(error: Exception, name: str) -> str | None:
    """The package that the failing code imports a name from; the name if none is found, None for a relative import."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    try:
        nodes = [*ast.walk(ast.parse(inspect.getsource(inspect.getmodule(frame) or frame)))]
    except (OSError, SyntaxError):
        return name
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name.split(".")[0]) == name:
                source = getattr(node, "module", None) or alias.name
                return None if getattr(node, "level", 0) else source.split(".")[0]
    return name


def _say_missing(pipeline: Any, failure: Exception, names: Sequence[str]) -> MissingArgument:
    asked = [name for name in names if _names(failure, name)]
    advice = (
        f"Pass the argument {' or '.join(asked[:3])}"
        if asked
        else "Run it yourself to see what it needs, and pass that"
    )
    return MissingArgument(
        f"model: got a {type(pipeline).__name__} that does not run with what could be made for it "
        f"({say_cause(failure)}); expected one that does. {advice}."
    )


def _names(error: Exception, name: str) -> bool:
    """Whether an exception speaks of an argument."""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", str(error)))


def _find_size(setting: Mapping[str, Any]) -> Size:
    rows = setting.get("batch_size") or next((setting[name] for name in PER_PROMPT if name in setting), 0)
    prompt = setting.get("prompt", setting.get("class_labels"))
    rows = rows or (len(prompt) if isinstance(prompt, list) else setting.get("batch", 1))
    height, width = setting.get("height", 512), setting.get("width", 512)
    return Size(rows, height, width, setting.get("num_frames", 9), setting.get(SEED, 0))


def _find_shape(shape: Sequence[int], size: Size) -> tuple[int, ...]:
    sides = iter((math.ceil(size.height / 42.67), math.ceil(size.width / 42.67)))  # one of Stable Cascade's decoder
    return tuple(next(sides) if axis < 0 else axis for axis in shape)


def _count_steps(takes: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> int:
    """Enough steps for ``STEPS`` of them to be left at the strength of an image's change."""
    if "num_inference_steps" in given:
        return given["num_inference_steps"]
    parameter = takes.get("strength")
    strength = given.get("strength", parameter.default if parameter else 1.0)
    return STEPS if not isinstance(strength, float) or strength <= 0 else math.ceil((STEPS + 1) / min(strength, 1.0))


def _cut_schedules(takes: Mapping[str, inspect.Parameter], steps: int) -> dict[str, Any]:
    """The defaults that hold a value for each of the default steps, cut to fewer steps."""
    full = takes["num_inference_steps"].default
    sequences = {p.name: p.default for p in takes.values() if isinstance(p.default, list | tuple)}
    return {name: values[:steps] for name, values in sequences.items() if len(values) == full and steps <= full}


def _fit(name: str, value: Any, size: Size, form: str) -> Any:
    """What the user gives, for a setting: pictures of its size, as many rows as it has."""
    if _is_picture(value):
        return arrange([value.resize((size.width, size.height))] * size.rows, form)
    if isinstance(value, torch.Tensor) and value.ndim > 1 and re.search("embed|latents|projections", name):
        return value[torch.arange(size.rows) % len(value)]
    return value


def _is_picture(value: Any) -> bool:
    return callable(getattr(value, "resize", None)) and isinstance(getattr(value, "size", None), tuple)
